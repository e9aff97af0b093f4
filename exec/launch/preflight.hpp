#pragma once

#include "core/model/dtype.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// What a rank says of itself before a run begins.
struct RankFacts {
  std::string host;                        ///< its machine's name
  std::optional<std::string> plan_device;  ///< the plan's device that it is to be, where it was told
  std::string device;                      ///< "cpu", "cuda:0"
  std::string device_name;                 ///< what the device calls itself
  Bytes memory;                            ///< of the device that programs may take
  std::vector<std::string> dtypes;         ///< that the device computes in, such as "bf16"
  std::string version;                     ///< Isobar's
  std::string torch_version;
  std::string plan_hash;
  std::string workload_hash;
  std::string data_hash;  ///< of what it trains on; "": synthetic data
  std::string settings;   ///< options that all ranks must share, such as "--steps 10 --seed 1"
  std::uint64_t first_step = 0;
};

std::string facts_to_json(const RankFacts& facts);
/// @throws InputError for text that is not such facts.
RankFacts facts_from_json(const std::string& text);

/// A rank as rank 0 sees it.
struct PresentRank {
  RankFacts facts;
  std::string address;  ///< that it calls from; of rank 0 the one that it is called at
  Seconds clock;        ///< what its wall clock shows more than rank 0's
  Seconds round_trip;   ///< of the message that told so: the clock is off by half of it at most
};

/// Which rank is which device of a plan.
enum class AssignmentRule {
  Automatic,  ///< by device where a rank was told one, by host where all hosts are devices, else in order
  Order,      ///< rank i is the plan's device i
  Host        ///< each rank is the device that its host is called
};

/// The devices that a plan's ranks are: its stages' in their order, then the data server.
std::vector<std::string> devices_of(const Plan& plan);

struct DeviceAssignment {
  std::vector<std::size_t> device_of_rank;  ///< empty when there are faults
  std::vector<std::string> faults;
};
/// Gives each rank one of `devices`, which are as many. A host is a device also by its name up to the first dot.
/// Automatic: ranks that were told a device take it, and the others what is left, in order; where none was told one and
/// every host is a device, each once, they are those; else rank i takes device i.
DeviceAssignment assign_devices(const std::vector<PresentRank>& ranks, const std::vector<std::string>& devices,
                                AssignmentRule rule);

/// What a run asks of its ranks.
struct Preflight {
  std::vector<std::string> devices;
  std::vector<Bytes> peak_memory;       ///< by device, as predicted; a data server's is 0
  std::vector<std::string> types = {};  ///< of device, by device, as the plan says; "": any, a data server's too
  DType dtype = DType::Float32;
  AssignmentRule rule = AssignmentRule::Automatic;
  Seconds clock_skew{5};  ///< more is refused
};
Preflight preflight_of(const Plan& plan, DType dtype);

/// For people, a line for each rank: which device of the plan it is, and what it is made of.
std::string assignment_in_words(const Preflight& preflight, const std::vector<PresentRank>& ranks,
                                const std::vector<std::size_t>& device_of_rank);

/// Compares what the ranks say with the plan and with rank 0. Every reason against a run is one line that names a rank.
/// Ranks on the same device of the same machine need the sum of their memory.
DeviceAssignment examine_ranks(const Preflight& preflight, const std::vector<PresentRank>& ranks);

/// Names a rank that would not begin at rank 0's step, and both steps; "" where there is none. That is no wrong input:
/// one of them may have looked before a checkpoint was complete.
std::string different_steps(const std::vector<PresentRank>& ranks);

}  // namespace isobar::exec

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

/// What a rank reports about itself before a run begins.
struct RankFacts {
  std::string host;                        ///< its machine's name
  std::optional<std::string> plan_device;  ///< name of its device in the plan, if set by --plan-device
  std::string device;                      ///< "cpu", "cuda:0"
  std::string device_name;                 ///< model name of the device
  Bytes memory;                            ///< that programs can take on the device
  std::vector<std::string> dtypes;         ///< in which the device computes, such as "bf16"
  std::string version;                     ///< Isobar's
  std::string torch_version;
  std::string plan_hash;
  std::string workload_hash;
  std::string data_hash;  ///< of the training data; "": synthetic data
  std::string settings;   ///< options that must be the same on all ranks, such as "--steps 10 --seed 1"
  std::uint64_t first_step = 0;
};

std::string facts_to_json(const RankFacts& facts);
/// @throws InputError for any other text.
RankFacts facts_from_json(const std::string& text);

/// A rank as rank 0 sees it.
struct PresentRank {
  RankFacts facts;
  std::string address;  ///< from which it connects; of rank 0, the one to which the others connect
  Seconds clock;        ///< how far its wall clock is ahead of rank 0's; error ≤ half of `round_trip`
  Seconds round_trip;   ///< of the message from which `clock` comes
};

/// How the ranks of a run get the devices of its plan.
enum class AssignmentRule {
  Automatic,  ///< by --plan-device where it is set, by host where all hosts are devices, else in order
  Order,      ///< rank i gets the plan's device i
  Host        ///< each rank gets the device that has the name of its host
};

struct DeviceAssignment {
  std::vector<std::size_t> device_of_rank;  ///< empty when there are faults
  std::vector<std::string> faults;
};
/// Assigns one of `devices` to each rank; there must be as many of them as ranks. A host matches a device also by its
/// name up to the first dot. Automatic: ranks with a `plan_device` take it, and the others take the remaining devices
/// in order. If none has one and the hosts are the devices, each once, ranks are assigned by host; else rank i takes
/// device i.
DeviceAssignment assign_devices(const std::vector<PresentRank>& ranks, const std::vector<std::string>& devices,
                                AssignmentRule rule);

/// What a run requires of its ranks.
struct Preflight {
  std::vector<std::string> devices;
  std::vector<Bytes> peak_memory;       ///< by device, as predicted; 0 for a data server
  std::vector<std::string> types = {};  ///< by device, as in the plan; "": any, also for a data server
  DType dtype = DType::Float32;
  AssignmentRule rule = AssignmentRule::Automatic;
  Seconds clock_skew{5};  ///< largest accepted difference of clocks
};
Preflight preflight_of(const Plan& plan, DType dtype);

/// For people, a line for each rank: its device in the plan, and that device's actual type and memory.
std::string assignment_text(const Preflight& preflight, const std::vector<PresentRank>& ranks,
                            const std::vector<std::size_t>& device_of_rank);

/// Compares what the ranks report with the plan and with rank 0, and assigns devices. Each fault is one line that names
/// a rank. Ranks on the same device of the same machine need the sum of their memory.
DeviceAssignment examine_ranks(const Preflight& preflight, const std::vector<PresentRank>& ranks);

/// Names a rank that would begin at another step than rank 0, and both steps; "" where there is none. That is not an
/// input error: one of them may have looked before a checkpoint was complete.
std::string different_steps(const std::vector<PresentRank>& ranks);

}  // namespace isobar::exec

#pragma once

#include "core/compute/framework.hpp"
#include "core/compute/sailor_profile.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "results/fidelity/measured_row.hpp"
#include "sim/generate/machine_file.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::cli {

/// Why a row cannot be expressed as platform, workload and plan.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a row may leave open.
struct RowChoice {
  std::uint64_t micro_batch = 1;
  std::size_t virtual_stages = 1;
  results::Recomputation recompute = results::Recomputation::None;
};

/// The choices for a row: one, unless it does not say all of them.
std::vector<RowChoice> choices_of(const results::MeasuredRow& row);

/// A row's devices: a stage of the pipeline has replicas of shards each, a device in one of them.
struct StagePlaces {
  std::vector<std::vector<std::size_t>> replicas;  ///< devices by shard, as indices of the platform
};

/// A row as a workload, in which no layer has been measured yet, and a plan on the devices of its machine.
struct RowProblem {
  Workload workload;  ///< of a whole micro-batch
  Plan plan;          ///< without claims
  double fill = 1;    ///< samples of a step over those of its micro-batches, of which the last may be smaller
  std::vector<std::size_t> chunk_of_stage;  ///< of the plan: which part of the pipeline it belongs to
  std::vector<StagePlaces> places;          ///< by stage of the pipeline
};

/// The devices of a machine, in its order.
struct MachineDevices {
  std::vector<std::string> names;
  std::vector<std::string> types;
  std::vector<std::size_t> nodes;  ///< the number of each device's node

  explicit MachineDevices(const Cluster& cluster);
};

/// @throws Unsupported, and InputError for a workload file that is wrong.
RowProblem problem_of(const results::MeasuredRow& row, const RowChoice& choice, const compute::Framework& framework,
                      const MachineDevices& devices);

}  // namespace isobar::cli

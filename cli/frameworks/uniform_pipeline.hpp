#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace isobar::cli {

/// The layers first..last of a stage.
using LayerRange = std::pair<std::size_t, std::size_t>;

/// A plan as training software has it: every stage has as many equal replicas of as many equal shards.
struct UniformPipeline {
  std::size_t devices = 1;   ///< of a pipeline of one shard (pipeline parallel size)
  std::size_t chunks = 1;    ///< stages of each device (virtual stages)
  std::size_t replicas = 1;  ///< that take sequences of their own (data parallel size)
  std::size_t context = 1;   ///< devices or groups of shards that divide a sequence
  std::size_t shards = 1;    ///< of a layer (tensor parallel size)
  bool divides_sequences_among_shards = false;
  std::vector<LayerRange> stages;  ///< in the order of the chain
  std::vector<std::string> ranks;  ///< devices; shards change first, then parts of sequences, replicas, stages
  std::uint64_t microbatches = 1;  ///< of a replica
};

/// A plan with stages in this form. Adds a line to `faults` for each thing of the plan that it cannot say: "stages[2]:
/// what is there; what `software` has"; the result then means nothing.
UniformPipeline uniform_pipeline(const Plan& plan, const std::string& software, std::vector<std::string>& faults);

/// The first pipeline of a plan in this form, as a plan without claims whose stages have a device each: its schedule,
/// and the micro-batches of a replica, of whole sequences. Adds a line to `faults` if other pipelines work in another
/// order.
Plan single_pipeline(const Plan& plan, const UniformPipeline& pipeline, const std::string& software,
                     std::vector<std::string>& faults);

/// Whether ranks take the same tasks in the same order, however their loops are written. O(tasks).
bool have_same_tasks(const std::vector<Order>& one, const std::vector<Order>& other);

/// Whether a pipeline would work in the same order under another schedule.
bool has_order_of(const Plan& pipeline, const ScheduleChoice& schedule);

/// The hosts of ranks: the machine of each device where the platform names machines, else the device itself.
std::vector<std::string> hosts_of_ranks(const std::vector<std::string>& ranks, const Cluster& cluster);

}  // namespace isobar::cli

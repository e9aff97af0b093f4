#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/shard_grid.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What allocators of replicas and shards have in common: which layers can be divided, and the stages of a plan.
namespace isobar::allocators {

/// The largest number of shards of a replica that allocators try.
inline constexpr std::uint64_t most_shards = 16;
/// Gradients that are added up together, as in PyTorch's DistributedDataParallel.
inline constexpr Bytes gradient_bucket(25 * 1024 * 1024);

/// Ascending. O(number).
std::vector<std::uint64_t> divisors_of(std::uint64_t number);

/// The schedule of a goal, for plans with replicas and shards.
/// @throws InputError naming `allocator` for a schedule whose orders are made for one placement of a chain.
const schedules::Schedule& require_schedule_of_replicas(const Goal& goal, std::string_view allocator);

/// The number of plans that a planner with an estimate of its own proposes: its best ones. The order of estimates is
/// not that of steps, and ten steps of 256 devices are played in a few seconds.
inline constexpr std::size_t most_proposals = 10;

/// The ways in which that number of shards can lie; for 1d the one without sides, also for one shard.
std::vector<ShardGrid> shard_grids(ShardGrid::Form form, std::uint64_t shards);

/// Why not all layers can be divided among that number of devices; none if they can. O(layers).
std::optional<std::string> why_no_shards(const Workload& workload, std::uint64_t shards, const ShardGrid& grid);

/// Whether the devices of each replica lie in one site; each next `shards` of them are a replica's.
bool share_sites(const Cluster& cluster, std::span<const std::size_t> devices, std::size_t shards);

/// Devices that together take some of a step's micro-batches through a stage, with equal shares of each layer.
struct ReplicaPlacement {
  std::uint64_t microbatches = 0;  ///< 0: all of the step, of a stage's only replica
  std::vector<std::size_t> devices;
};

/// Replicas on each next `shards` devices, with equal numbers of micro-batches.
std::vector<ReplicaPlacement> equal_replicas(std::span<const std::size_t> devices, std::size_t shards,
                                             std::uint64_t microbatches);

/// Layers first..last of the workload on these replicas: one stage, or where a replica has several devices or sequences
/// are divided, one for each layer, as the parts of a divided stage are. `cost` is of the workload.
std::vector<Stage> stages_on(const CostModel& cost, std::size_t first, std::size_t last,
                             const std::vector<ReplicaPlacement>& replicas, const ShardGrid& grid = {});

/// The parts of a stage whose replicas divide their optimizer's state or parameters.
inline constexpr std::size_t parts_of_divided_stage = 4;

/// Whether replicas of a stage lie in several sites.
bool crosses_sites(const Plan& plan);

/// Whether the replicas of each stage can divide what the plan's sync says, and add up matrices that stages share.
bool can_divide(const Workload& workload, const Plan& plan);

/// The plan with the warm-up of its goal, or if that is to be chosen, with the schedule's own and, if there is one,
/// with chosen_warm_up. `stages`: of the first replicas, over the chain that `chain_cost` is of. All stages have that
/// many replicas and shards.
std::vector<Plan> with_warm_ups(Plan plan, const CostModel& chain_cost, const std::vector<StagePlacement>& stages,
                                std::size_t replicas, std::size_t shards);

}  // namespace isobar::allocators

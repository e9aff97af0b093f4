#pragma once

#include "allocators/allocator.hpp"
#include "allocators/planners/sharded_layers.hpp"
#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/shard_grid.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace isobar::allocators {

/// The worse of two paths, in latency and in bandwidth.
Path slower_of(Path a, Path b);

/// The time in which `ends` devices add up `size` bytes each in a ring whose slowest link has this path.
Seconds ring_all_reduce(Bytes size, std::size_t ends, const Path& slowest);

/// What planners that estimate a step know of stages of replicas and shards. Devices of a stage are in the order of
/// replicas, and those of a replica in the order of shards. Paths take no time if transfers are free
/// (Goal::has_free_transfers).
class StageEstimates {
 public:
  /// Keeps references: problem, cost and schedule must outlive it. `cost` is of the problem's workload.
  StageEstimates(const HybridProblem& problem, const CostModel& cost, const schedules::Schedule& schedule);

  /// The layers as replicas with that number of shards have them; made once. Requires that they can be divided.
  const ShardedLayers& layers(std::uint64_t shards, const ShardGrid& grid = {});

  Path path(std::size_t from, std::size_t to) const;
  /// The slowest link of the rings in which shards of each replica add up what they compute.
  Path path_of_shards(std::span<const std::size_t> devices, std::size_t shards) const;
  /// The slowest link of the rings in which each shard adds up its gradients with the same one of the other replicas.
  Path path_of_replicas(std::span<const std::size_t> devices, std::size_t shards) const;
  FlopsPerSecond slowest(std::span<const std::size_t> devices) const;
  Bytes least_memory(std::span<const std::size_t> devices) const;

  /// The most micro-batches whose activations a replica holds, that takes `own` of the step's, as replicas order their
  /// work (docs/schedules.md): between `before` replicas of the stages before, and `after` of those after.
  std::uint64_t in_flight(std::size_t before, std::size_t after, std::uint64_t own);

 private:
  const HybridProblem& problem_;
  const CostModel& cost_;
  const schedules::Schedule& schedule_;
  std::map<std::pair<std::uint64_t, ShardGrid>, ShardedLayers> layers_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::vector<std::uint64_t>> held_;  // by ranks and micro-batches
};

}  // namespace isobar::allocators

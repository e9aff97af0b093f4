#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/shard_grid.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Sums over the layers of a workload as the largest of a replica's equal shards computes and holds them
/// (docs/costs.md, "Shards"). Layers are those of the workload, first..last both inclusive.
///
/// All layers can be divided so (why_no_shards). Sums take O(1), construction O(layers). Keeps a reference to `cost`.
class ShardedLayers {
 public:
  ShardedLayers(const CostModel& cost, std::uint64_t shards, const ShardGrid& grid = {});

  std::uint64_t shards() const { return shards_; }
  /// Forward and backward of one micro-batch.
  Flops work(std::size_t first, std::size_t last) const { return Flops(sum(work_, first, last)); }
  Flops update_work(std::size_t first, std::size_t last) const { return Flops(sum(update_, first, last)); }
  /// Gradients, in float32.
  Bytes gradients(std::size_t first, std::size_t last) const { return Bytes(4 * sum(parameters_, first, last)); }
  /// Memory with the activations of `in_flight` micro-batches, without what collectives among shards receive.
  Bytes memory(std::size_t first, std::size_t last, std::uint64_t in_flight) const;
  /// What shards add up and gather for one micro-batch, in rings over links of this path, one after the other.
  Seconds collectives(std::size_t first, std::size_t last, const Path& path) const
  {
    return sum(messages_, first, last) * path.latency + Bytes(sum(bytes_, first, last)) / path.bandwidth;
  }
  /// The part of a boundary's bytes that a shard sends to the next stage.
  double part_of_boundary() const { return part_of_boundary_; }

 private:
  static double sum(const std::vector<double>& sums, std::size_t first, std::size_t last)
  {
    return sums[last + 1] - sums[first];
  }

  const CostModel* cost_;
  std::uint64_t shards_;
  double part_of_boundary_;
  // Prefix sums:
  std::vector<double> work_;
  std::vector<double> update_;
  std::vector<double> parameters_;
  std::vector<double> resident_;     // bytes of each layer as a stage of its own
  std::vector<double> activations_;  // bytes of a micro-batch
  std::vector<double> messages_;
  std::vector<double> bytes_;
};

}  // namespace isobar::allocators

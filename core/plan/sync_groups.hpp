#pragma once

#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// One shard of each replica of a stage, which have units of a layer in common: they add up the gradients of what
/// belongs to these.
struct SyncGroup {
  UnitRange units;
  std::vector<std::size_t> shards;  ///< by replica
};

/// Whether all replicas of a stage have as many shards with the same shares.
bool are_divided_alike(const Stage& stage);

/// The groups of a layer of a stage outside of grids, by their units, which together are all. Of replicas that are
/// divided alike, one for each shard. O(shards of all replicas x replicas).
std::vector<SyncGroup> sync_groups(const Layer& layer, const Stage& stage);

}  // namespace isobar

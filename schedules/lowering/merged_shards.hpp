#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar::schedules {

/// The time of all collectives among the shards of a stage's first replica for one pass of a layer, one after another,
/// as the simulator plays them if nothing else is under way, but for those that gather for a pass beside the
/// computation before it; none for a stage of one shard.
struct ShardCollectiveTimes {
  Seconds forward;
  Seconds backward;
};
ShardCollectiveTimes shard_collective_times(const Plan& plan, std::size_t stage, std::size_t layer,
                                            const Workload& workload, const Cluster& cluster);

/// A plan in which the first shard of each replica stands for all of them.
struct MergedShards {
  Plan plan;
  Workload workload;
};

/// The shards of each replica as one device, whose layers take what a shard computes and the collectives of all.
/// Neighbouring layers on the same devices are one stage, unless their gradients are added up apart. `has_replicas`:
/// whether the plan of which this is a part has several. O(layers), and a collective's rounds for each kind of layer.
MergedShards merged_shards(const Plan& plan, const Workload& workload, const Cluster& cluster, bool has_replicas);

}  // namespace isobar::schedules

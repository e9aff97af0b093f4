#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar {

/// The time of all collectives among the shards of a stage's first replica for one pass of a layer, one after another,
/// as the simulator plays them if nothing else is under way, but for those that gather for a pass beside the
/// computation before it; none for a stage of one shard.
struct ShardCollectiveTimes {
  Seconds forward;
  Seconds backward;
};
ShardCollectiveTimes shard_collective_times(const Plan& plan, std::size_t stage, std::size_t layer,
                                            const Workload& workload, const Cluster& cluster);

}  // namespace isobar

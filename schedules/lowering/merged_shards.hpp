#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

namespace isobar::schedules {

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

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar {

/// The time of what the first group of replicas along an axis (Context or Experts) exchanges for one pass of a layer,
/// one exchange after another, as the simulator plays it if nothing else is under way; none for layers without
/// attention or without experts. `part` of what an AllToAll sends counts.
struct ExchangeTimes {
  Seconds forward;
  Seconds backward;  ///< with what recomputation repeats
};
ExchangeTimes exchange_times(const Plan& plan, std::size_t stage, std::size_t layer, const Workload& workload,
                             const Cluster& cluster, GridAxis axis, double part = 1);

/// The part of what devices send to experts, and back, that takes as long as when a token goes once to each node that
/// has experts of it, and inside of the node to their devices at the same time (DeepEP; arXiv 2412.19437,
/// section 3.2.2). Of N nodes, each of k experts of a token is in any of them alike: a node has some with 1 − (1 −
/// 1/N)^k. 1 for layers without experts, for groups in one node or in one device of each, and in nodes that have
/// unequal numbers of its devices.
double dispatched_once_a_node(const Plan& plan, std::size_t stage, std::size_t layer, const Workload& workload,
                              const Cluster& cluster);

}  // namespace isobar

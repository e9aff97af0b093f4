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
/// attention or without experts.
struct ExchangeTimes {
  Seconds forward;
  Seconds backward;  ///< with what recomputation repeats
};
ExchangeTimes exchange_times(const Plan& plan, std::size_t stage, std::size_t layer, const Workload& workload,
                             const Cluster& cluster, GridAxis axis);

}  // namespace isobar

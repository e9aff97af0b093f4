#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar {

/// The time of what the first group of replicas that divide sequences exchange for one pass of a layer, one exchange
/// after another, as the simulator plays it if nothing else is under way; none for layers without attention.
struct ContextExchangeTimes {
  Seconds forward;
  Seconds backward;  ///< with what recomputation repeats
};
ContextExchangeTimes context_exchange_times(const Plan& plan, std::size_t stage, std::size_t layer,
                                            const Workload& workload, const Cluster& cluster);

}  // namespace isobar

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// Computes a time, in seconds, that no order of a placement finishes a step in less than, as far as its micro-batches
/// fit in memory (docs/costs.md#the-schedule-bound).
///
/// For the plan checker, independent of schedules/orders/list_scheduler.hpp, so that an error in one shows against the
/// other. The stages of the plan are checked and have a device each; `devices` has their indices in the cluster.
/// O(layers + stages).
double least_step_of_orders(const Plan& plan, const std::vector<std::size_t>& devices, const Workload& workload,
                            const Cluster& cluster);

}  // namespace isobar

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// How many neighbouring replicas may divide the experts of a workload, ascending, with 1: every divisor of the number
/// of its experts and of the step's micro-batches that devices are enough for. Only 1 for a workload that has no
/// experts that can be divided (why_not_divided), or whose experts are divided already. O(layers x devices).
std::vector<std::size_t> expert_degrees(const Workload& workload, const Cluster& cluster, const Goal& goal);

}  // namespace isobar::allocators

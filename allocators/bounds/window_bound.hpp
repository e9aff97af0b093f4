#pragma once

#include "allocators/bounds/bounds.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

namespace isobar::allocators {

/// A bound on the step of all placements of a workload in which devices may use their machines, for a plan that does:
/// all work over the speed of all devices; and on a cluster of one device what copies and updates add, whatever part of
/// the layers stays on it (docs/certificates.md). Updates that wait for all gradients do so in every placement, unless
/// the plan's copies are redundant. O(layers x window_bound_parts).
Bound window_bound(const Plan& plan, const CostModel& cost);

}  // namespace isobar::allocators

#pragma once

#include "core/plan/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <vector>

namespace isobar::allocators {

/// The stages of a placement as a plan has them, with what an executor needs to emulate their devices. `cost` is of the
/// workload whose layers the placement numbers.
std::vector<Stage> plan_stages(const CostModel& cost, const std::vector<StagePlacement>& stages);

}  // namespace isobar::allocators

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <optional>
#include <string>

namespace isobar::allocators {

/// Writes the claims of a plan that is no chain (is_chain): predicted times and memory by playing one step of its
/// Program with nominal rates, the objective, the step bound, and the fractional bound over all placements. A plan that
/// meets that bound becomes optimal. A plan whose orders an allocator made gets the bound of all orders too.
///
/// The plan has stages, objective step and a schedule with all its numbers. The step is that of the simulator's first
/// iteration without contention, from the first input to the last update.
/// O(instructions of a step). @throws InputError for numbers or orders that do not fit the stages, and for a step that
/// is too long to be played.
void price_by_playing(Plan& plan, const Workload& workload, const Cluster& cluster);

/// The device whose memory a priced plan exceeds by most; none if the plan fits.
std::optional<std::string> overfull_device(const Plan& plan, const Cluster& cluster);

}  // namespace isobar::allocators

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <optional>
#include <string>

namespace isobar::allocators {

/// Writes the claims of a plan that is no chain (is_chain): predicted times and memory by playing one step of its
/// Program with nominal rates, the objective, the step bound, and the fractional bound over all placements. A plan that
/// meets that bound becomes optimal. A plan whose orders an allocator made gets the bound of all orders too.
///
/// The plan has stages, objective step and a schedule with all its numbers. The step is that of the simulator's first
/// iteration where no other job uses the links, from the first input to the last update.
/// O(instructions of a step). @throws InputError for numbers or orders that do not fit the stages, and for a step that
/// is too long to be played.
void price_by_playing(Plan& plan, const Workload& workload, const Cluster& cluster);

/// Predicts the step of a chain by playing its Program, where that may differ from the recurrence: channels contend for
/// links, or stages agree before their updates (needs_gradient_sync). Leaves the prediction of a chain of more than
/// most_played_instructions as it is. O(instructions of a step).
void play_chain(Plan& plan, const Workload& workload, const Cluster& cluster);

/// The memory that a plan lacks.
struct Excess {
  std::string reason;  ///< the stage or device that exceeds its memory by most, and the smallest change that would help
  Bytes size;
};

/// What a plan exceeds whose claims price_by_playing() has written; none if it fits.
std::optional<Excess> excess_of_devices(const Plan& plan, const Cluster& cluster);

/// Writes the objective of a plan whose goal is the step: of a chain by the cost model, of others with all claims as
/// price_by_playing() does. `cost` is of the plan's workload and cluster. Returns what the plan exceeds; none if it
/// fits. Throws as price_by_playing() does.
std::optional<Excess> price(Plan& plan, const CostModel& cost);

/// The step that a plan is predicted to take after price(), by which plans of all kinds compare: of a chain as
/// play_chain() predicts it. `cost` is of the plan's workload and cluster. O(instructions of a step) for a chain.
Seconds predicted_step(const Plan& plan, const CostModel& cost);

}  // namespace isobar::allocators

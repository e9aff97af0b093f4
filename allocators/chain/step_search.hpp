#pragma once

#include "allocators/allocator.hpp"
#include "allocators/chain/best_placements.hpp"
#include "allocators/search_clock.hpp"

#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Makes the step by the schedule's recurrence small (StepClock): anneals by random moves (placement_moves.hpp), again
/// and again from the best placement, hotter and colder by turns. `goal` is of objective `step`; memory of `start`
/// holds. Offers `kept` what each cycle found.
///
/// The random number of a move is drawn before the move is valued: it says up to which step the move is taken, and a
/// move whose lower bound (PlacementCosts) is above that needs no recurrence.
///
/// Ends when `budget` moves were looked at, when the clock is over, or when the step meets `bound` to 1e-9. Never worse
/// than the start; deterministic by seed and budget without a time limit. Some 0.3 us a move that the bound settles and
/// 1.5 us another, at 64 stages and 8 micro-batches.
std::vector<StagePlacement> improve_step(const CostModel& cost, const Goal& goal, std::vector<StagePlacement> start,
                                         SearchClock& clock, std::uint64_t seed, Seconds bound, std::uint64_t budget,
                                         BestPlacements& kept);

}  // namespace isobar::allocators

#pragma once

#include "allocators/allocator.hpp"
#include "allocators/chain/best_placements.hpp"
#include "allocators/search_clock.hpp"

#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Minimises the step by the schedule's recurrence (StepClock): anneals by random moves (placement_moves.hpp),
/// repeatedly from the best placement, at alternating temperatures. Requires objective `step` and a `start` that fits
/// in memory. The result of each cycle is offered to `kept`.
///
/// The random number of a move is drawn before the move is valued: it determines up to which step the move is accepted.
/// A move whose lower bound (PlacementCosts) is above that needs no recurrence.
///
/// Ends after `budget` moves, when the clock ends the search, or when the step meets `bound` to 1e-9. Never worse than
/// the start. Deterministic by seed and budget without a time limit. About 0.3 us for a move that the bound decides and
/// 1.5 us for any other, at 64 stages and 8 micro-batches.
std::vector<StagePlacement> improve_step(const CostModel& cost, const Goal& goal, std::vector<StagePlacement> start,
                                         SearchClock& clock, std::uint64_t seed, Seconds bound, std::uint64_t budget,
                                         BestPlacements& kept);

}  // namespace isobar::allocators

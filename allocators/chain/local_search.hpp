#pragma once

#include "allocators/allocator.hpp"
#include "allocators/chain/best_placements.hpp"
#include "allocators/search_clock.hpp"

#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Makes a placement better by moves between neighbours of it (placement_moves.hpp): descends to a local optimum, then
/// anneals from the best placement again and again, hotter and colder by turns, and descends from what that finds.
///
/// Where the objective counts the bottleneck, a little is added for every stage near it: the largest of many costs
/// tells nothing of a move that does not touch it. What is kept is judged by the objective alone.
///
/// Objective `step` is first searched by the formula below it (PlacementCosts) for a tenth of the limits, half where
/// the start's memory does not hold, then by itself (improve_step). `kept` is offered the start and what each cycle
/// found.
///
/// Ends when `budget` moves were looked at, when the clock is over, or when the objective meets `bound` to 1e-9. Memory
/// of `start` may not hold: then the excess is brought down first, and the result is the placement of least excess
/// where that fails. Never worse than a start that fits; the same for the same seed and budget where there is no time
/// limit. Some 0.2 us a move at 64 stages.
std::vector<StagePlacement> improve(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& start,
                                    SearchClock& clock, std::uint64_t seed, Seconds bound, std::uint64_t budget,
                                    BestPlacements* kept = nullptr);

/// Local search from the plan that was given as a start, else from the best of several quick ones
/// (start_placements.hpp), over boundaries, order and choice of the devices, for every objective and schedule.
///
/// A budget counts moves that are looked at; it is how long the search takes, so that spending it leaves the outcome
/// feasible. Without budget and time limit: 256 L D moves (objective `step`: 512), 16,384 to 16 million. With
/// SearchLimits::polish and another objective than `step`, the step is made small afterwards (step_search.hpp),
/// whatever that does to the objective: in a quarter of the time limit, or a 16th of the moves. A time limit or Ctrl-C
/// gives the best so far, as timed_out. Deterministic by seed and budget without a time limit.
///
/// Source: simulated annealing, Kirkpatrick, Gelatt, Vecchi, Science 1983; moves and energy are our own.
Placement place_by_local_search(const Problem& problem);

inline constexpr Allocator local_search_allocator = {
    .name = "local-search",
    .problem = "any objective over any devices in any order, from a plan given by --start or the best of quick ones",
    .guarantee = "none beyond its start; never worse than that",
    .cost =
        "O(k + log S) a move that touches k of S stages, O(S M) for step where its bound does not settle it; 256 L D "
        "moves (step: 512) unless limited; D² paths, at most 4,096 devices",
    .source = "own moves; simulated annealing, Kirkpatrick, Gelatt, Vecchi (Science 1983)",
    .place = place_by_local_search,
    .improves_plans = true,
    .most_devices = 4'096,
};

}  // namespace isobar::allocators

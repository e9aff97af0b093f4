#pragma once

#include "allocators/allocator.hpp"
#include "allocators/chain/best_placements.hpp"
#include "allocators/search_clock.hpp"

#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Improves a placement by moves to neighbours (placement_moves.hpp).
///
/// It descends to a local optimum, then anneals repeatedly from the best placement, at alternating temperatures, and
/// descends from what that finds. Where the objective counts the bottleneck, the annealed energy adds a little for
/// every stage near it. Otherwise, moves that do not touch the largest cost would all look equal. The placement to keep
/// is chosen by the objective only.
///
/// For objective `step`, a tenth of the limits goes to the formula below the step (PlacementCosts), or half if the
/// start does not fit in memory. The rest goes to the step itself (improve_step); the start and the result of each
/// cycle are offered to `kept`.
///
/// Ends after `budget` moves, when the clock ends the search, or when the objective meets `bound` to 1e-9. If `start`
/// does not fit in memory, the search reduces the excess first; if that fails, it returns the placement of least
/// excess. Never worse than a start that fits. Deterministic by seed and budget without a time limit. About 0.2 us a
/// move at 64 stages.
std::vector<StagePlacement> improve(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& start,
                                    SearchClock& clock, std::uint64_t seed, Seconds bound, std::uint64_t budget,
                                    BestPlacements* kept = nullptr);

/// Searches from the given start, else from the best of several quick plans (start_placements.hpp), over boundaries,
/// order and choice of the devices, for every objective and schedule.
///
/// Idea: descent and simulated annealing (improve()). With SearchLimits::polish and an objective other than `step`, the
/// step is minimised afterwards (step_search.hpp), even where the objective gets worse. That takes a quarter of the
/// time limit, or a 16th of the moves.
///
/// Devices that no placement needs are left out (needed_devices.hpp).
///
/// Complexity: O(k + log S) a move that touches k of S stages; O(S M) for `step` where its bound does not settle it. A
/// budget counts moves; it sets the length of the search, so the outcome stays feasible when it is spent. Without
/// budget and time limit: 256 L D moves (objective `step`: 512), 16,384 to 16 million; for `step` also as many as pass
/// at most 8 billion micro-batches through stages. Deterministic by seed and budget without a time limit.
///
/// It proves nothing; allocate() adds a bound. A time limit or Ctrl-C gives the best placement so far, as timed_out.
///
/// Source: simulated annealing, Kirkpatrick, Gelatt, Vecchi, Science 1983; moves and energy are our own.
Placement place_by_local_search(const Problem& problem);

inline constexpr Allocator local_search_allocator = {
    .name = "local-search",
    .problem =
        "any objective over any devices in any order, from the plan of --start or the best of several quick plans",
    .guarantee = "none beyond its start; never worse than that",
    .cost =
        "O(k + log S) a move that touches k of S stages, O(S M) for step where its bound does not settle it; 256 L D "
        "moves (step: 512) unless limited; D² paths, at most 4,096 devices",
    .source = "own moves; simulated annealing, Kirkpatrick, Gelatt, Vecchi (Science 1983)",
    .place = place_by_local_search,
    .improves_plans = true,
    .rivalry = Rivalry::EveryObjective,
    .most_devices = 4'096,
};

}  // namespace isobar::allocators

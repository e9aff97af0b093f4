#pragma once

#include "allocators/allocator.hpp"
#include "allocators/search_clock.hpp"

#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// The part of a time limit that goes to polishing, and how many moves of the objective's search one of its moves
/// costs.
inline constexpr double polish_time_fraction = 0.25;
inline constexpr std::uint64_t moves_per_polish_move = 64;

/// Makes the step time by the schedule's exact recurrence (core/step_recurrence.hpp) small, whatever that does to the
/// objective: random moves, annealed, from a placement whose memory holds and to another. Ends when `budget` moves were
/// looked at or the clock is over. Never worse than the start. O(S M) a move; deterministic by seed and budget.
std::vector<StagePlacement> polish(const CostModel& cost, const Goal& goal, std::vector<StagePlacement> start,
                                   SearchClock& clock, std::uint64_t seed, std::uint64_t budget);

}  // namespace isobar::allocators

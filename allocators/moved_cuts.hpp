#pragma once

#include "allocators/allocator.hpp"

#include <cstdint>

namespace isobar::allocators {

/// Plays of a search for better cuts, where no limit is given.
inline constexpr std::uint64_t plays_of_moved_cuts = 3'000;

/// Moves the cuts of SearchLimits::start_plan, which keeps its devices, degrees, order of work and all else: the
/// configuration of today with its layers balanced better. Stages begin where `problem.view` has cuts.
///
/// From the start's cuts, or the nearest ones that the view has, a layer of the view moves from one stage to another,
/// and those between pass one on, as long as that makes the played step shorter; moves from the longest stages to the
/// shortest come first. Then three random moves and another descent, from the best cuts so far, until the limits. Steps
/// are estimates, with as few devices acting as can (schedules::play_acting). Cuts that exceed a memory or break
/// SearchLimits::rules are passed by.
///
/// A heuristic: of both plans, the caller keeps the one with the shorter step of all devices, so that a search is never
/// slower than its start. A budget counts plays. Deterministic for a seed without a time limit. O(stages²) plays for a
/// descent's last round.
/// @returns the plan with the best cuts, and that with the start's if these are others.
Proposals propose_moved_cuts(const HybridProblem& problem);

}  // namespace isobar::allocators

#pragma once

#include "allocators/allocator.hpp"

#include <string>
#include <vector>

namespace isobar::allocators {

/// Another allocator to try, with its own goal.
struct Rival {
  std::string allocator;
  Goal goal;
};

/// The allocators whose plans may be faster, simulated, than those that `allocator` makes for a goal, by
/// Allocator::rivalry, without itself:
/// - for an allocator that divides operators, the others that do;
/// - for an allocator that places replicas, the others that do and that take the goal's schedule;
/// - except for those that divide operators, the allocators that place chains and take the goal's schedule;
/// - under a schedule of chains (ChainSchedule), those with Rivalry::EveryObjective for each other objective of chains,
///   with the goal's schedule and micro-batches.
/// None for objective dtfm. Those that place replicas come first, then those that place chains: without a search, with
/// one, and those that refuse schedules without a recurrence. `allocator` may also be "exec:PROGRAM".
std::vector<Rival> rivals_of(const std::string& allocator, const Goal& goal);

}  // namespace isobar::allocators

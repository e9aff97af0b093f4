#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// What place_exactly() does for objective `step`: a good placement first, by quick starts and local search. At most 12
/// devices: a search through all placements (step_tree.hpp), again with more patience; where it comes to its end, with
/// the optimum: 7 devices and 14 layers in seconds. Else a ladder of limits (step_bound.hpp) and local search in turns,
/// so that the gap tells what is open.
///
/// A budget counts limits priced, and 100,000 suffixes searched each; without limits it is 600, and 40 for more than 20
/// devices with transfers. Under a time limit some 0.4 of it goes to local search. Deterministic without one.
Placement place_step_exactly(const Problem& problem);

}  // namespace isobar::allocators

#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// place_exactly() for objective `step`.
///
/// A good placement comes first, from quick starts and local search; then a ladder of limits on turns (step_bound.hpp).
/// What that leaves open is searched rung by rung (step_tree.hpp), with local search in between. A search of all of it
/// ends with the optimum: 7 devices and 14 layers in seconds, few stages of 64 devices likewise. Where that takes too
/// long, the search is for placements below a value between the bound and the best one.
///
/// A budget counts limits priced, and 1e8 or more steps of a search, as `verify` counts them. Without limits it is 40
/// to 600, more for fewer layers and devices, which takes 5 to 40 s where nothing is proven earlier. Under a time limit
/// some 0.4 to 0.5 of it goes to local search. Deterministic without a time limit. `verify` takes at most some two
/// minutes.
Placement place_step_exactly(const Problem& problem);

}  // namespace isobar::allocators

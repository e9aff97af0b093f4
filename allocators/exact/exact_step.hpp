#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// What place_exactly() does for objective `step`: a good placement first, by quick starts and local search; then a
/// ladder of limits on turns (step_bound.hpp). What that leaves open is searched rung by rung (step_tree.hpp): all of
/// it, which ends with the optimum (7 devices and 14 layers in seconds, few stages of 64 devices likewise), or as far
/// below the best placement as the search comes to its end; in between, local search.
///
/// A budget counts limits priced, and 1e8 steps of a search or more, as `verify` counts them; without limits it is 40
/// to 600, the more the fewer layers and devices, which takes 5 to 40 s where nothing is proven before. Under a time
/// limit some 0.4 to 0.5 of it goes to local search. Deterministic without one. `verify` takes at most some two
/// minutes.
Placement place_step_exactly(const Problem& problem);

}  // namespace isobar::allocators

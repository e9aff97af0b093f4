#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// place_exactly() for objective `step`.
///
/// Quick starts and local search find a good placement first. Then a ladder of limits on turns (step_bound.hpp) raises
/// the bound. Rungs that remain open are searched one by one (step_tree.hpp), with local search in between. A complete
/// search proves the optimum: in seconds for 7 devices and 14 layers, or for few stages of 64 devices. If it would take
/// too long, the search is only for placements below a value between the bound and the best one.
///
/// A budget counts limits priced and parts of a search, each of 1e8 or more steps as `verify` counts them. The default
/// is 40 to 600, more for fewer layers and devices; it takes 5 to 40 s unless the optimum is proven earlier. Under a
/// time limit, 40 to 50 % of the time goes to local search. Deterministic without a time limit. `verify` takes about
/// two minutes at most.
Placement place_step_exactly(const Problem& problem);

}  // namespace isobar::allocators

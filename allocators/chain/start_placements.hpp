#pragma once

#include "allocators/allocator.hpp"
#include "allocators/search_clock.hpp"

#include <string>
#include <vector>

namespace isobar::allocators {

/// Returns the best of several quick placements, as the start of a search.
///
/// They are even, sky-dynamic-fixed, a few passes of chain-dp if these are cheap (about a second at most), and greedy
/// fills. A greedy fill begins at the end of the chain and fills each device up to its memory and a limit on its
/// compute time. It is tried with several limits, and with the devices fastest first, slowest first, by distance from
/// the fastest, and in the order of the file. If none of the placements fits in memory, returns the one of least
/// excess. Deterministic without a time limit.
std::vector<StagePlacement> best_start(const Problem& problem, const SearchClock& clock);

/// Describes why no order and choice of devices holds the chain. It names the layer that fits nowhere, or the stage
/// that is too large in the nearest quick placement. It also states how much more memory on every device would make a
/// quick placement fit.
std::string why_none_fits(const Problem& problem, const SearchClock& clock);

}  // namespace isobar::allocators

#pragma once

#include "allocators/allocator.hpp"
#include "allocators/search_clock.hpp"

#include <string>
#include <vector>

namespace isobar::allocators {

/// The best of several placements that are quickly made, to search from: even, sky-dynamic-fixed, chain-dp with a few
/// passes where they are cheap (at most about a second), and greedy fills: devices by speed, by speed backwards, by
/// distance from the fastest and in the order of the file, each filled from the end of the chain up to its memory and
/// one of several limits of its compute time. Where memory holds in none of them, the one of least excess.
/// Deterministic where there is no time limit.
std::vector<StagePlacement> best_start(const Problem& problem, const SearchClock& clock);

/// Why no order and choice of devices holds the chain: the layer that fits nowhere, or the stage that the nearest quick
/// placement leaves too large, and how much more memory on every device lets a quick placement fit.
std::string why_none_fits(const Problem& problem, const SearchClock& clock);

}  // namespace isobar::allocators

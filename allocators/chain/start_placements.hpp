#pragma once

#include "allocators/allocator.hpp"
#include "allocators/search_clock.hpp"

#include <string>
#include <vector>

namespace isobar::allocators {

/// Returns the best of several quick placements, as the start of a search.
///
/// They are even, sky-dynamic-fixed, chain-dp with a few passes where these are cheap (at most about a second), and
/// greedy fills. These take the devices by speed, by speed backwards, by distance from the fastest and in the order of
/// the file, and fill each from the end of the chain up to its memory and one of several limits on its compute time. If
/// memory holds in none of them, the one of least excess is returned. Deterministic without a time limit.
std::vector<StagePlacement> best_start(const Problem& problem, const SearchClock& clock);

/// Describes why no order and choice of devices holds the chain: the layer that fits nowhere, or the stage that is too
/// large in the nearest quick placement, and how much more memory on every device makes a quick placement fit.
std::string why_none_fits(const Problem& problem, const SearchClock& clock);

}  // namespace isobar::allocators

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace isobar {

/// Most places of a ring whose order is the best one; above, it is found by a search.
inline constexpr std::size_t most_exact_ring = 16;

/// The order of places in a ring, from each to the next and from the last to the first, whose slowest hop is as fast as
/// possible, and of these the one with the least sum of hop costs: a bottleneck TSP of directed hops. It begins with
/// place 0. `cost(from, to)` is what a hop takes; lower is better.
///
/// Exact to most_exact_ring places, by Held and Karp's recurrence over sets (1962): O(2^n n^2) time, O(2^n n) memory.
/// Above, the nearest place comes next, and then single places and turned runs move while that helps: O(n^3) per move.
/// Deterministic.
std::vector<std::size_t> ring_order(std::size_t places, const std::function<double(std::size_t, std::size_t)>& cost);

}  // namespace isobar

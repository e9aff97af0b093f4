#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes the placements of least communication by DT-FM's cost (dtfm_costs.hpp), one for each shape, with proof.
///
/// Devices whose exchange changes no cost are of one class, so a stage is how many devices of each class it has: a
/// composition. 1. The best sequence of at most two runs of equal compositions, improved by exchanges of devices and
/// reversals (annealing), is the start. 2. Limits on the gradient sync divide all placements into rungs. For each,
/// multipliers on the devices of a class (subgradient steps) bound the passes of a path over compositions, and a
/// depth-first search, pruned by its path lengths, finds what costs less or proves that nothing does. 3. What syncs
/// longer than the last rung costs at least that and the fastest passes.
///
/// Optimal for its shape and cuts, to 1e-10, unless a limit stops it; then the bound is what was proven so far. Memory
/// and compute do not count. SearchLimits::budget counts relaxations and nodes of the search; without limits it stops
/// after 300 s. At most 64 classes, and most_compositions compositions of a stage. Deterministic without a time limit.
/// Source: own; the cost is DT-FM's (Yuan et al., NeurIPS 2022, arXiv 2206.01288); multipliers after Held, Karp (1970).
/// @throws InputError where there are more compositions than that.
Proposals propose_by_exact_dtfm(const HybridProblem& problem);

inline constexpr Allocator dtfm_exact_allocator = {
    .name = "dtfm-exact",
    .problem = "pipelines with replicas of one device, least cost of communication by DT-FM",
    .guarantee = "least cost of its shape, or within the certified gap if a limit stops it",
    .cost = "exponential in the worst case, anytime; stops after 300 s unless limited; at most 12,000 compositions",
    .source = "own; DT-FM's cost (arXiv 2206.01288), multipliers (Held, Karp 1970)",
    .propose = propose_by_exact_dtfm,
    .takes_grid = true,
    .needs_stage_each = true,
    .most_devices = 1024,
};

}  // namespace isobar::allocators

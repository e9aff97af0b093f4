#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes uniform grids: p stages with d replicas each, as Megatron-LM lays out pipeline and data parallelism.
///
/// Each stage has the same number of layers, one more the first ones; each replica takes M / d micro-batches. Stage i
/// has the devices i·d to i·d + d - 1 of those used, in the order of the file, so that replicas of a stage are
/// neighbours and stages lie furthest apart. Devices: all, and all without the slowest speeds, one speed after another,
/// or of more than 64 speeds, 64 times evenly more of them. For n of them p is every divisor of n (or given), and d the
/// largest divisor of M that is at most n / p (or given); of more than p·d devices the fastest are used. With schedule
/// interleaved a device has 2, 3 or 4 stages (or "chunks"). "warm_up" to be chosen is the schedule's own and that of
/// chosen_warm_up. Replicas divide nothing, their optimizer's state, that with stages in four parts, or all with stages
/// in four parts; they exchange it in a ring, or if those of a stage lie in several sites also hierarchically.
///
/// A baseline: every grid is tried, but layers, shares and the order of devices are not searched.
/// O(speeds x divisors of D) proposals of D replicas. Deterministic.
///
/// Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021
/// (arXiv 2104.04473).
/// @throws InputError for a schedule whose orders an allocator makes for one placement.
Proposals propose_grids(const HybridProblem& problem);

inline constexpr Allocator grid_allocator = {
    .name = "grid",
    .problem = "uniform grids: equal stages of a pipeline with equal replicas, all shapes and shardings",
    .guarantee = "the shortest step of all those grids",
    .cost = "O(speeds x divisors of D) plays of a step",
    .source = "Megatron-LM (arXiv 2104.04473)",
    .propose = propose_grids,
    .takes_grid = true,
};

}  // namespace isobar::allocators

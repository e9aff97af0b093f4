#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes uniform grids with layers of unequal numbers in their stages, as AMP finds them.
///
/// Every p stages x d replicas x t shards of all devices, in the order of the file: shards of a replica are neighbours,
/// then the replicas of a stage. d divides the step's M micro-batches; p, d and t may be given, and the form of shards.
/// The layers of each shape are cut so that AMP's estimate of the step is least: with m = M / d micro-batches of a
/// replica, (m - 1) x the largest stage + all stages and hops of one micro-batch + the longest sum of gradients. A
/// stage takes as long as on its slowest device, with what its shards add up; a hop the mean over replicas of the
/// slowest of its shards, there and back. Replicas add up gradients in a ring and divide nothing.
///
/// Two faults of the published code are fixed: it averages the types of devices by constants, and it takes the
/// bandwidth of the gradients' ring from its last link alone. Two limits are added: a stage fits in the memory of its
/// devices, and the ten best estimates are proposed (its authors run the best ones on the cluster, since the order of
/// estimates is not that of steps). A schedule has one stage on each device. A number left to the allocator is chosen
/// as by grid.
///
/// `budget` counts shapes. O(divisors of D squared x p L squared) for a limit of the largest stage. Deterministic.
/// @throws InputError for a schedule whose orders are made for one placement.
/// Source: Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022
/// (arXiv 2210.07297), and its code, DachengLi1/AMP.
Proposals propose_by_amp(const HybridProblem& problem);

inline constexpr Allocator amp_allocator = {
    .name = "amp",
    .problem = "uniform grids of all devices with equal replicas and shards; layers by a dynamic program",
    .guarantee = "the shortest step of the ten grids that AMP estimates best",
    .cost = "O(p L²) for each shape p x d x t and limit of the largest stage; 10 plays of a step",
    .source = "AMP (arXiv 2210.07297), code DachengLi1/AMP",
    .propose = propose_by_amp,
    .takes_grid = true,
    .takes_shards = true,
    .takes_splits = true,
    .needs_stage_each = true,
    .rivalry = Rivalry::SameGoal,
};

}  // namespace isobar::allocators

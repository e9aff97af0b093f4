#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes uniform grids: p stages with d replicas of t shards each, as Megatron-LM lays out pipeline, data and tensor
/// parallelism.
///
/// Each stage has the same number of layers, one more the first ones; each replica takes M / d micro-batches, and each
/// shard the same share of a layer. Stage i has the devices i·d·t to i·d·t + d·t - 1 of those used, in the order of the
/// file, so that shards of a replica are neighbours, then the replicas of a stage, and stages lie furthest apart.
/// Devices: all, and all without the slowest speeds, one speed after another, or of more than 64 speeds, 64 times
/// evenly more of them. For n of them p is every divisor of n (or given); t, where all layers can be divided, every
/// divisor of n / p up to 16 whose replicas lie in one site each (or given), under schedules with one stage on each
/// device; and d the largest divisor of M that is at most n / (p·t) (or given); of more than p·d·t devices the fastest
/// are used. With schedule interleaved a device has 2, 3 or 4 stages (or "chunks"). "warm_up" to be chosen is the
/// schedule's own and that of chosen_warm_up. Replicas divide nothing, their optimizer's state, that with stages in
/// four parts, or all with stages in four parts; they exchange it in a ring, or if those of a stage lie in several
/// sites also hierarchically.
///
/// Of a workload whose sequences are divided into c parts, d is a multiple of c, and each next c replicas take the
/// parts of one micro-batch after another. Each layer is then a part of its stage. So are those of a workload whose
/// experts are divided.
///
/// Under a schedule whose devices divide the ends of the model, t is 1 and p at least 2: the p devices of a pipeline
/// divide the first and the last layer, and the cuts are of the layers between. Replicas then divide nothing or their
/// optimizer's state.
///
/// A baseline: every grid is tried, but layers, shares and the order of devices are not searched.
/// O(speeds x divisors of D squared) proposals of D replicas. Deterministic.
///
/// Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021
/// (arXiv 2104.04473).
/// @throws InputError for a schedule whose orders an allocator makes for one placement.
Proposals propose_grids(const HybridProblem& problem);

/// The same with stages whose layers take the slowest of their devices about equally long, each from one layer on, in
/// place of equally many: the least longest time of a stage. O(layers squared) more for each depth.
Proposals propose_balanced_grids(const HybridProblem& problem);

inline constexpr Allocator grid_allocator = {
    .name = "grid",
    .problem = "uniform grids: equal stages of a pipeline with equal replicas and shards, all shapes and shardings",
    .guarantee = "the shortest step of all those grids",
    .cost = "O(speeds x divisors of D squared) plays of a step",
    .source = "Megatron-LM (arXiv 2104.04473)",
    .propose = propose_grids,
    .takes_grid = true,
    .takes_shards = true,
    .takes_splits = true,
    .takes_context = true,
    .takes_experts = true,
    .divides_ends = true,
    .rivalry = Rivalry::SameGoal,
};

}  // namespace isobar::allocators

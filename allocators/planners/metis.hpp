#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes pipelines whose stages have groups of unlike devices, as Metis finds them.
///
/// A type is all devices of equal speed and memory; more than four types are joined to four classes of neighbours in
/// speed with about as many devices each. All devices stand in a row, type by type, in every order of the types, and in
/// the order of the file within one. For every number of stages the row is cut into groups of a power of two each
/// (group_sizes). Each group begins as one replica a device, or as many as there are micro-batches. While memory forces
/// the layers, a stage has half the replicas of twice the shards, up to 16, as far as all layers can be divided and no
/// replica lies in two sites: the fullest stage, or if no layers fit, the one with most replicas. Replicas of a stage
/// take micro-batches by their speed (largest remainders); one whose part is none stays idle. Layers go to stages by
/// how fast these compute, and where memory is too small, up to two times again with less for full stages and more for
/// others.
///
/// Metis' estimate of a step, with a round of r micro-batches, r the most replicas of a stage: (M / r - 1) x the
/// longest round of a stage + the rounds of all stages + all hops over their slowest links + the longest sum of
/// gradients + the longest update. The published search also varies the number of micro-batches, which is the goal's
/// here; its profiles of a model are the cost model's times and bytes. The ten best estimates are proposed: the order
/// of estimates is not that of steps. Replicas add up gradients in a ring and divide nothing.
///
/// The number of stages, of replicas and of shards may be given; a schedule has one stage on each device. At most
/// 20,000 rows with their groups and 200,000 strategies for them are tried, about as many for each number of stages,
/// the most equal groups first. `budget` counts strategies, of which each has an estimate. O(D) for a row of D devices,
/// and O(S log L) for a strategy of S stages. Deterministic.
/// @throws InputError for a schedule whose orders are made for one placement, and for shards in another form than 1d.
/// Source: Um et al., Metis: Fast Automatic Distributed Training on Heterogeneous GPUs, USENIX ATC 2024, and its code,
/// SamsungLabs/Metis.
Proposals propose_by_metis(const HybridProblem& problem);

inline constexpr Allocator metis_allocator = {
    .name = "metis",
    .problem =
        "orders of device types x groups in powers of two, each with replicas by speed or shards; layers by "
        "capacity",
    .guarantee = "the shortest step of the ten pipelines that Metis estimates best",
    .cost = "O(S log L) for each of at most 200,000 strategies of S stages; 10 plays of a step",
    .source = "Metis (USENIX ATC 2024), code SamsungLabs/Metis",
    .propose = propose_by_metis,
    .takes_grid = true,
    .takes_shards = true,
    .needs_stage_each = true,
    .rivalry = Rivalry::SameGoal,
};

}  // namespace isobar::allocators

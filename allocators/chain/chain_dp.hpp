#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Finds the best contiguous split of the chain over the devices in the order of the file; devices may stay empty.
///
/// Problem: with stage costs s_i (docs/costs.md), minimise max s_i (bottleneck), sum s_i (sequential) or (M-1) max s_i
/// + sum s_i (pipeline). Exact for this order, to 1e-12 relative, for every objective except `step` and for every
/// communication and schedule. Memory counts the micro-batches that the schedule has in flight on each stage; transfers
/// depend on the pair of devices.
///
/// Idea: a dynamic program from the last layer to the first. A state is a stage's first layer, its device and the
/// number of stages after it (capped at M; left out where memory does not depend on it). A stage's cost couples the
/// transfer before it with the one after it. So a state keeps every option (activations sent, cost of the stages after)
/// that no other option beats in both. It is valued once for each distinct path back to a device before it.
/// - sequential: one pass, no limit on a stage's cost.
/// - bottleneck: passes that decide whether a plan within a limit exists. A failed pass also gives the next limit at
///   which anything could change, so the search ends exactly.
/// - pipeline: branch and bound over the limit T. Between limits lo and hi, no plan beats (M-1) lo + least sum within
///   hi; a pass at T that finds a plan with largest stage m settles everything in [m, T].
/// - step: a heuristic. It takes the plans of least sum, with transfers serial and overlapped, under a grid of limits.
///   The grid runs from the least bottleneck to that of the least sum and is finer around the best plan. Each is valued
///   by the recurrence. With the schedule `sequential` or one micro-batch, it takes the plan of least serial sum (which
///   does not include the update and the inputs fetched ahead).
///
/// Complexity of a pass: O(K (D² L + D L W Q)) time and O(K D L) memory. L layers, D devices, without those that no
/// placement needs (needed_devices.hpp); K = min(M, D, L) under 1F1B where memory depends on the schedule, else 1; W
/// cuts that one stage can reach within its memory and the limit; Q distinct paths back of a device (a state is valued
/// again only where its best option changes: mostly 1 to 3 times). About 20 passes for bottleneck, 80 for step and 400
/// for pipeline, at 64 devices x 483 layers. docs/allocator_methods.md has measured times. A budget counts passes.
/// Deterministic without a time limit.
///
/// It cannot try other orders, so the outcome is feasible, not optimal. When the budget or the time is spent, or after
/// an interrupt, the answer is the best plan so far, as timed_out.
///
/// Source: the threshold search is Pinar, Tabak and Aykanat's parametric search for chains on chains (J. Parallel
/// Distrib. Comput. 2008); the coupled transfers and the pipeline objective are our own.
Placement place_by_chain_dp(const Problem& problem);

inline constexpr Allocator chain_dp_allocator = {
    .name = "chain-dp",
    .problem = "any objective over the devices in the order of the file, some left out",
    .guarantee = "optimal for this order, to 1e-12 relative; for step a heuristic that proves nothing",
    .cost =
        "O(L D (D + W)) a pass, W cuts in a stage's reach; 1 pass (sequential), about 20 (bottleneck), about 80 "
        "(step), hundreds (pipeline); up to M times that under 1f1b where memory binds; at most 4,096 devices",
    .source = "own; threshold search after Pinar, Tabak, Aykanat (JPDC 2008)",
    .place = place_by_chain_dp,
    .rivalry = Rivalry::EveryObjective,
    .most_devices = 4'096,
};

}  // namespace isobar::allocators

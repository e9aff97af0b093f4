#pragma once

#include "allocators/allocator.hpp"

#include <string>

namespace isobar::allocators {

/// Solves Sky Computing's published mixed-integer program with CBC. Only in builds with CBC (ISOBAR_HAS_CBC).
///
/// Minimises q over binaries x[i,j] (device i holds layer j) and continuous z[i], y[i] (its first and last layer):
///   C1  sum_j lm[j] x[i,j] <= dm[i]              memory
///   C2  y[i] >= j x[i,j]
///   C3  z[i] <= j x[i,j] + (L+1)(1 - x[i,j])
///   C4  y[i] - z[i] <= sum_j x[i,j] - 1          contiguous
///   C5  sum_i x[i,j] = 1
///   C6  q >= t[i] sum_j lf[j] x[i,j]             bottleneck
/// with lm layer_memory, dm device_memory, lf multiply_adds and t slowness (SkyInputs). Devices come in any order and
/// may stay empty. Stops at a relative gap of 20 % or after 300 s, as published; `time_limit` replaces the 300 s,
/// `budget` limits the nodes.
///
/// Exponential time; 2 L D + 3 D + L rows. Deterministic under a budget, one thread.
///
/// Fixed: q and the rows are scaled (lf to sum 1, lm by each device's memory). The layers of a device are read from x,
/// rounded, and not from truncated z and y. The status is checked, so a run without a solution is timed_out and never a
/// plan. An even split that does not fit in memory is not passed to CBC as a start.
///
/// Kept: no transfers, forward FLOPs only, the weak formulation. On the published sizes CBC rarely improves the even
/// split (7,578 rows at 15 x 243). The plan does not claim what CBC proves: a branch-and-bound run leaves nothing that
/// can be checked without another run.
///
/// Source: hpcaitech/SkyComputing 456c749, `optimal_allocate`.
Placement place_by_sky_milp(const Problem& problem);

/// Returns CBC's version, such as "2.10.8": another version may find another plan.
std::string cbc_version();

inline constexpr Allocator sky_optimal_allocator = {
    .name = "sky-optimal",
    .problem = "Sky Computing's MILP: least bottleneck of forward FLOPs, any order of devices, no transfers",
    .guarantee = "within 20 % of the optimum of its own objective, unless a limit stops it",
    .cost = "exponential; stops after 300 s or the given limits; L D binaries, at most 500,000, 2 L D + 3 D + L rows",
    .source = "Sky Computing (arXiv 2202.11836), code 456c749, optimal_allocate; solver CBC",
    .place = place_by_sky_milp,
    .most_pairs = 500'000,
};

}  // namespace isobar::allocators

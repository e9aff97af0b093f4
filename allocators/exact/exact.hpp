#pragma once

#include "allocators/allocator.hpp"
#include "allocators/bounds.hpp"

#include <vector>

namespace isobar::allocators {

/// Finds the best placement over the devices in any order, any of them left out, with a certificate of how good it is.
///
/// Problem: minimise alpha max s_i + beta sum s_i over all sequences of stages that cut the chain, each stage on a
/// device of its own within its memory. (alpha, beta) is (1, 0) for bottleneck, (0, 1) for sequential, (M-1, 1) for
/// pipeline.
///
/// Idea: a good placement first, from quick ones (start_placements.hpp) improved by local search. Then proof and search
/// alternate, by what the problem allows; with a time limit and communication, local search gets turns too:
/// - Repeating chains without transfers, with memory that shrinks with the stage: phase flow (phase_flow.hpp). For the
///   bottleneck it ends with the optimum, at 1,023 different devices in about a second. For sums its potentials price
///   each limit on the largest cost, and its dynamic program finds placements near that price.
/// - Everything else: multipliers on "each device once" over the path relaxation (path_relaxation.hpp), and beams of
///   labels (label_search.hpp) of growing width. The bottleneck halves the limit (bottleneck_search.hpp); sums use a
///   ladder of limits (sum_search.hpp). When a beam drops no label, its failure is a proof.
/// - Objective `step` has its own ladder and search (exact_step.hpp).
///
/// Complexity: exponential in the worst case. A budget counts limits priced and beams run. Without limits it is 2,000,
/// and 15 for more than 20 devices with transfers: some ten seconds at 64 devices. Deterministic without a time limit.
///
/// It cannot always end with the optimum: memory depends on the number of stages after a stage, transfers on the pair
/// of devices. Few devices, or few kinds of devices on few sites, do; otherwise the gap shows what is open. Out of
/// limits: the best placement so far, as timed_out. The outcome is optimal (set by allocate()) when the bound meets the
/// plan to 1e-9, and infeasible only when it is proven that no order and choice of devices holds the chain.
///
/// Source: own. Bounds are Lagrangian relaxations of a path problem (Held and Karp, 1970), solved by the volume
/// algorithm (Barahona and Anbil, 2000) or, over phases, by the ellipsoid method.
Placement place_exactly(const Problem& problem);

/// Computes a quick lower bound for any goal: that of the same goal without transfers, whose stages cost no more. It
/// comes from potentials where the chain repeats, else from multipliers. `known` is some placement: the bound is at
/// most its objective without transfers. The certificate is `path`, or `fractional` where that is as good. Some 0.1 s
/// at 64 devices and 483 layers.
Bound bound_without_transfers(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known);

inline constexpr Allocator exact_allocator = {
    .name = "exact",
    .problem = "any objective over any devices in any order",
    .guarantee =
        "proven optimal where the outcome is optimal, else within the certified gap; never worse than its starts",
    .cost =
        "exponential in the worst case, anytime; about 1 s for the bottleneck of 1,023 devices x 7,683 layers; "
        "at most 4,096 devices",
    .source = "own; phase flow, multipliers (Held, Karp 1970), labels",
    .place = place_exactly,
    .most_devices = 4'096,
};

}  // namespace isobar::allocators

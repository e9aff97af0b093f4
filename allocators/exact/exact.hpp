#pragma once

#include "allocators/allocator.hpp"
#include "allocators/bounds/bounds.hpp"

#include <vector>

namespace isobar::allocators {

/// Finds the best placement over the devices in any order, any of them left out, with a certificate of how good it is.
///
/// Problem: minimise alpha max s_i + beta sum s_i over all sequences of stages that cut the chain, each stage on its
/// own device, within the device's memory. (alpha, beta) is (1, 0) for bottleneck, (0, 1) for sequential, (M-1, 1) for
/// pipeline.
///
/// Idea: begin with the best of several quick placements (start_placements.hpp), improved by local search. Then
/// alternate between proof and search, by the methods that the problem allows. With a time limit and communication,
/// local search gets turns too.
/// - Repeating chains without transfers, where fewer layers never need more memory: phase flow (phase_flow.hpp). For
///   the bottleneck it ends with the optimum, at 1,023 different devices in about a second. For sums its potentials
///   price each limit on the largest cost, and its dynamic program finds placements near that price.
/// - Everything else: multipliers on "each device once" over the path relaxation (path_relaxation.hpp), and beams of
///   labels (label_search.hpp) of growing width. The bottleneck halves the limit (bottleneck_search.hpp); sums use a
///   ladder of limits (sum_search.hpp). When a beam drops no label, its failure is a proof.
/// - Objective `step` has its own ladder and search (exact_step.hpp).
///
/// Complexity: exponential in the worst case. A budget counts limits priced and beams run. The default is 2,000, or 15
/// for more than 20 devices with transfers: about ten seconds at 64 devices. Deterministic without a time limit.
///
/// It does not always prove the optimum, because memory depends on the number of stages after a stage, and transfers on
/// the pair of devices. It does for few devices, or few kinds of devices on few sites; otherwise the gap shows what
/// remains open. When a limit is reached, the answer is the best placement so far, as timed_out. The outcome is optimal
/// (set by allocate()) when the bound meets the plan to 1e-9, and infeasible only when it is proven that no order and
/// choice of devices holds the chain.
///
/// Source: own. Bounds are Lagrangian relaxations of a path problem (Held and Karp, 1970), solved by the volume
/// algorithm (Barahona and Anbil, 2000) or, over phases, by the ellipsoid method.
Placement place_exactly(const Problem& problem);

/// Computes a quick lower bound for any goal: the bound for the same goal without transfers, where no stage costs more.
/// It comes from potentials if the chain repeats, else from multipliers. `known` is any placement; the bound is at most
/// its objective without transfers. The certificate is `path`, or `fractional` if that is as good. About 0.1 s at 64
/// devices and 483 layers.
Bound bound_without_transfers(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known);

inline constexpr Allocator exact_allocator = {
    .name = "exact",
    .problem = "any objective over any devices in any order",
    .guarantee =
        "proven optimal among chains where the outcome is optimal, else within the certified gap; never worse than its "
        "starts",
    .cost =
        "exponential in the worst case, anytime; about 1 s for the bottleneck of 1,023 devices x 7,683 layers; "
        "at most 4,096 devices",
    .source = "own; phase flow, multipliers (Held, Karp 1970), labels",
    .place = place_exactly,
    .takes_offload = true,
    .needs_chain = true,
    .rivalry = Rivalry::SameGoal,
    .most_devices = 4'096,
};

}  // namespace isobar::allocators

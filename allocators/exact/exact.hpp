#pragma once

#include "allocators/allocator.hpp"
#include "allocators/bounds.hpp"

#include <vector>

namespace isobar::allocators {

/// The best placement over the devices in any order, any of them left out, with a certificate of how good it is.
///
/// A good placement first: quick ones (start_placements.hpp), made better by local search. Then proof and search in
/// turns, by what the problem allows (with a time limit and communication, local search has its turns too):
/// - Repeating chains without transfers, memory that shrinks with the stage: phase flow (phase_flow.hpp). For the
///   bottleneck it ends with the optimum, at 1,023 different devices in about a second. For sums its potentials price
///   each limit on the largest cost, and its dynamic programme finds placements near that price.
/// - Everything else: multipliers on "each device once" over the path relaxation (path_relaxation.hpp), by halving the
///   limit for the bottleneck and by a ladder of limits for sums (ladder.hpp), and beams of labels (label_search.hpp)
///   of growing width. When a beam drops no label, its failure is a proof. Memory holds by the stages after a stage and
///   transfers by pair of devices, so few devices, or few kinds of them on few sites, end with the optimum; else the
///   gap says what is open.
/// - Objective `step` has a ladder and a search of its own (exact_step.hpp).
///
/// Outcome optimal (given by allocate()) when the bound meets the plan to 1e-9; infeasible only when it is proven that
/// no order and choice of devices holds the chain. A budget counts limits priced and beams run. Without limits it is
/// 2,000, and 15 for more than 20 devices with transfers: some ten seconds at 64 devices. Out of limits:
/// the best so far, as timed_out. Deterministic without a time limit.
///
/// Source: own. Bounds are Lagrangian relaxations of a path problem (Held and Karp, 1970), solved by the volume
/// algorithm (Barahona and Anbil, 2000) or, over phases, by the ellipsoid method.
Placement place_exactly(const Problem& problem);

/// A lower bound for any goal and placement, quickly: that of the same goal without transfers, which cost no less with
/// them; by potentials where the chain repeats, else by multipliers. `known` is some placement: nothing above its
/// objective without transfers is proven. Its certificate is `path`, or `fractional` where that is as good.
/// Some 0.1 s at 64 devices and 483 layers.
Bound bound_without_transfers(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known);

inline constexpr Allocator exact_allocator = {
    .name = "exact",
    .problem = "any objective over any devices in any order",
    .guarantee = "optimal where the outcome says so, else within the certified gap; never worse than its starts",
    .cost =
        "exponential in the worst case, anytime; about 1 s for the bottleneck of 1,023 devices x 7,683 layers; "
        "at most 4,096 devices",
    .source = "own; phase flow, multipliers (Held, Karp 1970), labels",
    .place = place_exactly,
    .most_devices = 4'096,
};

}  // namespace isobar::allocators

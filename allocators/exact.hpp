#pragma once

#include "allocators/allocator.hpp"
#include "allocators/bounds.hpp"

namespace isobar::allocators {

Placement place_exactly(const Problem& problem);

/// A lower bound for any goal and placement, quickly: that of the same goal without transfers, which cost no less with
/// them; by potentials where the chain repeats, else by multipliers. `known` is some placement: nothing above its
/// objective without transfers is proven. Its certificate is `path`, or `fractional` where that is as good.
Bound bound_without_transfers(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known);

inline constexpr Policy exact_policy = {
    .name = "exact",
    .problem = "any objective over the devices in any order, some left out",
    .guarantee = "optimal where it says so, else best found, with a certified bound",
    .cost = "exponential in the worst case; anytime",
    .source = "own",
    .place = place_exactly,
};

}  // namespace isobar::allocators

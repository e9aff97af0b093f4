#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

Placement place_exactly(const Problem& problem);

inline constexpr Policy exact_policy = {
    .name = "exact",
    .problem = "any objective over the devices in any order, some left out",
    .guarantee = "optimal where it says so, else best found, with a certified bound",
    .cost = "exponential in the worst case; anytime",
    .source = "own",
    .place = place_exactly,
};

}  // namespace isobar::allocators

#pragma once

#include "allocators/allocator.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// Returns floor(layers / devices) for each device, one more for the first (layers mod devices).
std::vector<std::size_t> even_counts(std::size_t layers, std::size_t devices);

/// Returns the stages that give each device its count of layers in turn; a device with count 0 gets no stage.
std::vector<StagePlacement> stages_of_counts(const std::vector<std::size_t>& counts);

/// Gives every device the same number of layers, in the order of the file: Sky Computing's allocator "even".
///
/// Device i of D gets floor(L / D) layers, one more if i < L mod D. O(L + D). Deterministic. With more devices than
/// layers the last devices stay empty. Under schedules with several stages on a device these divide its layers evenly.
///
/// It cannot balance: it ignores speeds, transfers, objective and memory. A split that exceeds a device's memory is
/// infeasible.
///
/// Source: hpcaitech/SkyComputing 456c749, `even_allocate`.
Placement place_evenly(const Problem& problem);

inline constexpr Allocator even_allocator = {
    .name = "even",
    .problem = "equal numbers of layers on all devices, in the order of the file",
    .guarantee = "none; ignores speed, transfers and memory",
    .cost = "O(L + D)",
    .source = "Sky Computing (arXiv 2202.11836), code 456c749, even_allocate",
    .place = place_evenly,
    .rivalry = Rivalry::SameGoal,
};

}  // namespace isobar::allocators

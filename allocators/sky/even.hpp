#pragma once

#include "allocators/allocator.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// floor(layers / devices) each, the first (layers mod devices) one more.
std::vector<std::size_t> even_counts(std::size_t layers, std::size_t devices);

/// Stages that give each device its count of layers in turn; a device with none gets no stage.
std::vector<StagePlacement> stages_of_counts(const std::vector<std::size_t>& counts);

/// Gives every device the same number of layers, in the order of the file: Sky Computing's allocator "even".
///
/// Looks at counts only. Ignores speeds, transfers, objective and memory: a split that exceeds a device's memory is
/// answered as infeasible. With more devices than layers the last devices stay empty. O(layers + devices).
/// Deterministic.
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
};

}  // namespace isobar::allocators

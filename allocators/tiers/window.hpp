#pragma once

#include "allocators/allocator.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/tiers/window_costs.hpp"

#include <optional>

namespace isobar::allocators {

/// The shape with the least step of those that propose_windows tries; none if none fits, or if the clock ends the
/// search before the first. Requires three layers or more.
std::optional<WindowShape> best_window(const WindowCosts& costs, SearchClock& clock);
/// What the shape needs that lacks least where none fits.
WindowMemory nearest_window(const WindowCosts& costs);

/// Proposes plans on one device whose machine holds and updates the layers that do not fit: for each kind of device
/// that has a machine, the one with the least step.
///
/// Layers but the first and the last may pass through the device. Some of them stay: all as a prefix, which leaves the
/// updates with least slack out, or some of them spread evenly over the rest, which shortens the copies. For each such
/// set, with activations on the device and on the host, the places that the device's memory leaves are divided between
/// parameters and gradients; more places never make a step longer. Updates end with the step, or run into the next one
/// where that is shorter: both give what training without a window gives. Where the machine's memory is too small, the
/// optimizer's states of the last layers are on its disk. Sets whose bound exceeds the best step are not tried. Of up
/// to 32 layers, one that stays and one that passes are then exchanged while that helps. At the end as few places are
/// kept as the same step needs.
///
/// A budget counts the shapes that are timed. Deterministic without a time limit.
/// @throws InputError for a schedule that passes layers for each micro-batch, and layers that keep their activations.
Proposals propose_windows(const HybridProblem& problem);

inline constexpr Allocator window_allocator = {
    .name = "window",
    .problem = "one device and its machine: which layers stay, and how the others pass through the device",
    .guarantee = "the least step of prefixes of resident layers, and within 1 % of any set of up to 9",
    .cost = "O(layers) for each of some hundred sets and divisions of the memory",
    .source = "own, on Sun et al., STRONGHOLD, SC 2022",
    .propose = propose_windows,
    .uses_machines = true,
};

}  // namespace isobar::allocators

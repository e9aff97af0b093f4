#pragma once

#include "allocators/allocator.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// The orders of devices that a search looks through.
enum class DeviceOrder { OfFile, Any };

/// Returns the devices that suffice for every placement of the problem's chain, ascending.
///
/// Two devices are alike if exchanging them changes no cost: they have the same speed, memory and input, and, where the
/// goal counts transfers, the same paths to and from all others. A placement has at most as many stages as there are
/// layers. So every placement costs as much as one that takes the first devices of each kind: in any order, the first
/// ones up to that number; in the order of the file, after each device the next one of a kind. Devices of
/// SearchLimits::start stay. All devices, if there are no more than layers.
///
/// O(devices²) look-ups of paths where all devices are alike; those of different nodes differ after a few. An
/// interrupt or the time limit leaves the remaining devices unlike. Deterministic without a time limit.
std::vector<std::size_t> needed_devices(const Problem& problem, DeviceOrder order);

/// Answers a problem by `place`, which sees only the needed devices. The answer has the problem's devices.
Placement place_on_needed_devices(const Problem& problem, DeviceOrder order, Placement (*place)(const Problem&));

}  // namespace isobar::allocators

#pragma once

#include "allocators/chain/placement_costs.hpp"
#include "allocators/fast_random.hpp"

namespace isobar::allocators {

/// Proposes a random move of a random kind that touches `stage`: boundaries shift by a few layers, stages or devices
/// change places near or far, a device enters, leaves or moves.
/// @returns false when what was drawn is no valid move; draw again then.
bool propose_random_move(PlacementCosts& costs, FastRandom& random, std::size_t stage);

}  // namespace isobar::allocators

#pragma once

#include "allocators/chain/placement_costs.hpp"
#include "allocators/fast_random.hpp"

namespace isobar::allocators {

/// Proposes a random move that touches `stage`. The kind is random too: boundaries shift by a few layers; stages or
/// devices change places, near or far; a device enters, leaves or moves.
/// @returns false when the move drawn is not valid; the caller then draws again.
bool propose_random_move(PlacementCosts& costs, FastRandom& random, std::size_t stage);

}  // namespace isobar::allocators

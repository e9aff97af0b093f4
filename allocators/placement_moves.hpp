#pragma once

#include "allocators/fast_random.hpp"
#include "allocators/placement_costs.hpp"

namespace isobar::allocators {

/// Proposes a random move of a random kind: boundaries shift by a few layers, stages or devices change places near or
/// far, a device enters, leaves or goes elsewhere. `aimed`: the move touches a stage of largest cost.
/// @returns false when what was drawn is no move; draw again then.
bool propose_random_move(PlacementCosts& costs, FastRandom& random, bool aimed);

}  // namespace isobar::allocators

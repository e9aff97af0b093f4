#pragma once

#include "allocators/spmd/strategy.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar::allocators::spmd {

/// A lower bound on the time of every strategy of a problem, by formula Duplex and as executed.
///
/// A step takes at least the compute C of a device, and at least the collectives K, however they overlap; so it takes
/// λC + (1-λ)K for every λ between 0 and 1. The least such sum of all strategies needs no debts: one label for each
/// state, and stages of one operator. The bound is the largest of these over λ, found as the crossing of lines (C, K)
/// of strategies. It counts the compute of a device of `kind`, and memory is not limited.
///
/// A search of one label a state for each of at most 12 λ.
///
/// @returns infinity for a problem without a strategy.
Seconds lower_bound(const StrategyProblem& problem, std::size_t kind);

}  // namespace isobar::allocators::spmd

#pragma once

#include "core/plan/cost_model.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// How a chain folds onto devices, for `fold`.
struct Fold {
  std::vector<std::size_t> devices;  ///< indices in the cluster, by rank
  schedules::Folding folding = schedules::Folding::OneEach;
  std::size_t parts = 1;  ///< stages of each device
  /// Most micro-batches in flight, by rank and part.
  std::vector<std::vector<std::uint64_t>> in_flight = {};
};

/// Cuts a chain into `parts` stages on each device, in the order of the folding, so that the slowest stage is as fast
/// as a greedy search finds: for a given limit each stage takes as many layers as the limit and its device's memory
/// allow. Memory is shared evenly among the parts of a device or, where that fails, left to the first ones. If no limit
/// works within the memory, it is ignored: the caller checks it.
///
/// A heuristic: exact for the slowest stage where memory does not bind. Ignores transfers. O(layers) for each of about
/// 50 limits. Deterministic.
/// @returns the stages, in chain order; none if the chain has fewer layers than there are stages.
std::vector<StagePlacement> fold(const CostModel& cost, const Fold& how);

}  // namespace isobar::allocators

#pragma once

#include "core/costs/cost_model.hpp"
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
  std::vector<std::size_t> layers = {};  ///< of each device, by rank; empty: as many as balance the devices
};

/// Cuts a chain into `parts` stages on each device, in the order of the folding.
///
/// With `layers` every device gets that number of layers, in parts that differ by at most one. Otherwise the devices
/// are balanced: what exceeds memories is least, then the largest compute time of a device over all its parts, then the
/// differences between devices and between the parts of each.
///
/// A heuristic: it begins with parts in proportion to the speeds of their devices. Then stages pass single layers on,
/// over any number of stages, while that improves the cuts. Ignores transfers. O(stages²) for each of a few passes.
/// Deterministic.
/// @returns the stages, in chain order; none if a stage would have no layer.
std::vector<StagePlacement> fold(const CostModel& cost, const Fold& how);

}  // namespace isobar::allocators

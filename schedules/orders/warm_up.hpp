#pragma once

#include "core/costs/cost_model.hpp"
#include "core/units.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace isobar::schedules {

/// What a stage of a chain does per micro-batch, and its hop to the next stage.
struct StageRhythm {
  Seconds pass;                 ///< forward and backward; of a split backward, without the weight gradients
  Seconds weights = {};         ///< the weight gradients of a split backward
  TransferTimes output = {};    ///< activations to the next stage; unused for the last stage
  TransferTimes gradient = {};  ///< gradients back from the next stage; unused for the last stage
  std::uint64_t lag = 0;        ///< backwards from an input gradient to its weight gradients (zero_bubble.hpp)
  /// Micro-batches that fit into its memory, from their forward to their last backward.
  std::uint64_t most_in_flight = std::numeric_limits<std::uint64_t>::max();
};

/// Forwards by stage that come before the first backward, and the time per micro-batch of a full pipeline.
struct WarmUp {
  std::vector<std::uint64_t> forwards;
  Seconds period;
};

/// The least warm-up under which a pipeline of 1F1B or of the zero-bubble schedules takes no longer per micro-batch
/// than its slowest stage or lane, whatever the delay of its transfers. If the memory does not allow that, the warm-up
/// of the shortest period that it allows; none if not even a single micro-batch in flight fits (lag + 1 with a lag).
///
/// With period T, from the last stage to the first:
///   w_i = max over j > i of w_j + ceil((passes of i..j + weights of i + round trips over hops i..j-1) / T) - 1,
/// at most M. Under memory, T is found by bisection to 1e-12 of its value: a longer period never needs more forwards.
/// Ratios within 1e-12 of a whole number count as that number.
///
/// O(S^2) time per step of the bisection, at most about a hundred. Deterministic.
/// @throws std::logic_error without stages or micro-batches, or if nothing takes time.
std::optional<WarmUp> least_warm_up(const std::vector<StageRhythm>& stages, std::uint64_t microbatches);

/// The numbers "warm_up" of a choice; none if it has none. More than M forwards count as M.
/// @throws InputError unless there is a number for each device, none above that of the device before: a device would
/// wait for a micro-batch that the one before forwards only after a backward that waits for this device.
std::optional<std::vector<std::uint64_t>> given_warm_up(const PipelineShape& shape, const ScheduleChoice& choice);

}  // namespace isobar::schedules

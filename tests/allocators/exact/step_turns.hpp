#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace isobar::testing_support {

/// The terms of the lower bound on the step (docs/certificates.md) of one placement, in seconds.
struct Turns {
  double alone = 0;    ///< one micro-batch alone, with its input; under schedule sequential with 1/M of the input
  double largest = 0;  ///< what every further micro-batch adds at least
};

inline Turns turns_of(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  const bool is_free = goal.has_free_transfers();
  const auto microbatches = static_cast<double>(goal.microbatches);
  const ChainSchedule schedule = require_chain_schedule(goal.schedule);
  const bool is_sequential = schedule == ChainSchedule::Sequential;
  const bool interleaves = schedule == ChainSchedule::OneForwardOneBackward && goal.microbatches > 1;
  Turns turns;
  if (!is_free) {
    const TransferTimes input = cost.input_transfer(stages.front().device);
    turns.alone = input.total().value / (is_sequential ? microbatches : 1);
    if (!is_sequential) turns.largest = input.data.value;
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    const double forward = (cost.forward_work(first, last) / cost.speed(device)).value;
    const double backward = (cost.backward_work(first, last) / cost.speed(device)).value;
    double turn = forward + backward;
    if (interleaves) {
      const auto held = microbatches_in_flight(schedule, stages.size() - 1 - i, goal.microbatches);
      const double both = (microbatches - static_cast<double>(held)) / (microbatches - 1);
      turn = std::max(backward + forward * both, forward + backward * both);
    }
    turns.alone += forward + backward;
    turns.largest = std::max(turns.largest, turn);
    if (is_free || i + 1 == stages.size()) continue;
    const TransferTimes output = cost.output_transfer(device, stages[i + 1].device, last + 1);
    const TransferTimes gradient = cost.gradient_transfer(device, stages[i + 1].device, last + 1);
    turns.alone += (output.total() + gradient.total()).value;
    const bool are_apart = schedule == ChainSchedule::GPipe;
    turns.largest = std::max(
        turns.largest, are_apart ? (output.data + gradient.data).value : std::max(output.data, gradient.data).value);
  }
  return turns;
}

}  // namespace isobar::testing_support

#include "core/costs/step_recurrence.hpp"

#include "core/errors.hpp"

#include <algorithm>

namespace isobar {

std::uint64_t StepRecurrence::warm_up_of(std::size_t stage, std::size_t stages) const
{
  switch (schedule_) {
    case ChainSchedule::Sequential:
      return 0;
    case ChainSchedule::GPipe:
      return microbatches_;
    case ChainSchedule::OneForwardOneBackward:
      return std::min<std::uint64_t>(microbatches_, stages - 1 - stage);
  }
  return 0;
}

double StepRecurrence::next_input_arrival(std::uint64_t microbatch, TransferTimes input)
{
  // Double-buffered: the input of micro-batch m leaves once m-2 has been forwarded.
  const double ready = microbatch < 2 ? 0 : forward_end_[microbatch % 2];
  return input_arrival_ = std::max(input_arrival_, ready + input.latency.value) + input.data.value;
}

double StepRecurrence::forward(StageState& state, const StageTimes& times, double arrival)
{
  state.free = std::max(state.free, arrival) + times.forward.value;
  state.output_arrival =
      std::max(state.output_arrival, state.free + times.output.latency.value) + times.output.data.value;
  return state.output_arrival;
}

void StepRecurrence::warm_up(TransferTimes input, const std::vector<StageTimes>& stages)
{
  // In place: a stage warms up on the arrivals from the previous stage and overwrites them with those at the next
  // stage. At most one arrival is left over, since the stage has at most one warm-up forward less.
  arrivals_.resize(std::max<std::size_t>(arrivals_.size(), states_.front().warm_up));
  for (std::uint64_t m = 0; m < states_.front().warm_up; ++m) {
    const double arrival = next_input_arrival(m, input);
    arrivals_[m] = forward(states_.front(), stages.front(), arrival);
    forward_end_[m % 2] = states_.front().free;
  }
  for (std::size_t i = 1; i < stages.size(); ++i) {
    StageState& state = states_[i];
    for (std::uint64_t m = 0; m < state.warm_up; ++m) {
      const double arrival = arrivals_[m];
      arrivals_[m] = forward(state, stages[i], arrival);
    }
    if (state.warm_up >= states_[i - 1].warm_up) continue;
    state.arrived[state.warm_up % 2] = arrivals_[state.warm_up];
  }
}

Seconds StepRecurrence::step_time(TransferTimes input, const std::vector<StageTimes>& stages)
{
  ensure(!stages.empty(), "a step has stages");
  const std::size_t count = stages.size();
  input_arrival_ = 0;
  states_.assign(count, {});
  for (std::size_t i = 0; i < count; ++i) states_[i].warm_up = warm_up_of(i, count);
  warm_up(input, stages);
  for (std::uint64_t n = 0; n < microbatches_; ++n) {
    for (std::size_t i = 0; i < count; ++i) {
      StageState& state = states_[i];
      const std::uint64_t m = state.warm_up + n;
      if (m >= microbatches_) continue;
      const double arrival = i == 0 ? next_input_arrival(m, input) : state.arrived[m % 2];
      const double next = forward(state, stages[i], arrival);
      if (i == 0) forward_end_[m % 2] = state.free;
      if (i + 1 < count) states_[i + 1].arrived[m % 2] = next;
    }
    double arrival = 0;  // of the gradients from the next stage
    for (std::size_t i = count; i-- > 0;) {
      StageState& state = states_[i];
      state.free = std::max(state.free, arrival) + stages[i].backward.value;
      if (i == 0) break;
      StageState& before = states_[i - 1];
      const TransferTimes& gradient = stages[i - 1].gradient;
      before.gradient_arrival =
          std::max(before.gradient_arrival, state.free + gradient.latency.value) + gradient.data.value;
      arrival = before.gradient_arrival;
    }
  }
  double end = 0;
  for (std::size_t i = 0; i < count; ++i) end = std::max(end, states_[i].free + stages[i].update.value);
  return Seconds(end);
}

StepTimes step_times(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  ensure(!stages.empty(), "a step has stages");
  const bool counts_transfers = !goal.has_free_transfers();
  StepTimes times;
  if (counts_transfers) times.input = cost.input_transfer(stages.front().device);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    StageTimes stage;
    stage.forward = cost.forward_time(device, first, last);
    stage.backward = cost.backward_time(device, first, last);
    stage.update = cost.update_time(device, first, last);
    if (counts_transfers && i + 1 < stages.size()) {
      stage.output = cost.output_transfer(device, stages[i + 1].device, last + 1);
      stage.gradient = cost.gradient_transfer(device, stages[i + 1].device, last + 1);
    }
    times.stages.push_back(stage);
  }
  return times;
}

Seconds step_time_by_recurrence(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  const StepTimes times = step_times(cost, stages, goal);
  return StepRecurrence(require_chain_schedule(goal.schedule), goal.microbatches).step_time(times.input, times.stages);
}

}  // namespace isobar

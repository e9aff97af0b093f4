#include "allocators/chain/step_clock.hpp"

#include <algorithm>
#include <utility>

namespace isobar::allocators {

StepClock::StepClock(ChainSchedule schedule, std::uint64_t microbatches)
    : schedule_(schedule), microbatches_(static_cast<std::size_t>(microbatches)), arrivals_(microbatches_)
{
}

/// Time at which the first stage has the input of its next micro-batch, which is sent when the last but one was
/// forwarded.
double StepClock::next_input(TransferTimes input)
{
  return input_arrival_ = std::max(input_arrival_, last_but_one_end_ + input.latency.value) + input.data.value;
}

void StepClock::forward_first(TransferTimes input, const StepTerms& terms, std::size_t count)
{
  double free = 0;
  double output = 0;
  for (std::size_t m = 0; m < count; ++m) {
    free = std::max(free, next_input(input)) + terms.forward;
    last_but_one_end_ = last_end_;
    last_end_ = free;
    output = std::max(output, free + terms.output_latency) + terms.output_data;
    arrivals_[m] = output;
  }
  lanes_[0].free = free;
  lanes_[0].output_arrival = output;
}

/// Forwards the first `count` micro-batches; arrivals_ are then those at the next stage.
void StepClock::forward_through(const StepTerms& terms, std::size_t stage, std::size_t count)
{
  double free = 0;
  double output = 0;
  for (std::size_t m = 0; m < count; ++m) {
    free = std::max(free, arrivals_[m]) + terms.forward;
    output = std::max(output, free + terms.output_latency) + terms.output_data;
    arrivals_[m] = output;
  }
  lanes_[stage].free = free;
  lanes_[stage].output_arrival = output;
}

/// The stages from `head` on, warmed up, alternate one forward and one backward. Leaves in arrivals_ the times at which
/// the stage before them has its gradients.
void StepClock::take_turns(TransferTimes input, const std::vector<StepTerms>& stages, std::size_t head)
{
  const std::size_t count = stages.size();
  double gradient_before = 0;
  for (std::size_t n = 0; n < microbatches_; ++n) {
    // From the last stage to the first: each forwards what arrived in the previous round.
    const std::size_t done = count + n > microbatches_ ? count + n - microbatches_ : 0;
    for (std::size_t i = count; i-- > std::max(head, done);) {
      Lanes& lanes = lanes_[i];
      const double arrival = i == 0 ? next_input(input) : lanes.arrived;
      lanes.free = std::max(lanes.free, arrival) + stages[i].forward;
      if (i == 0) {
        last_but_one_end_ = last_end_;
        last_end_ = lanes.free;
      }
      if (i + 1 == count) continue;
      lanes.output_arrival =
          std::max(lanes.output_arrival, lanes.free + stages[i].output_latency) + stages[i].output_data;
      lanes_[i + 1].arrived = lanes.output_arrival;
    }
    double behind = lanes_[count - 1].free += stages[count - 1].backward;
    for (std::size_t i = count - 1; i-- > head;) {
      // max(free, max(gradient, behind + latency) + data) + backward, rearranged so that the next stage depends on only
      // one sum and one maximum of it.
      Lanes& lanes = lanes_[i];
      const StepTerms& terms = stages[i];
      const double without = std::max(lanes.free, lanes.gradient_arrival + terms.gradient_data) + terms.backward;
      const double turn = terms.gradient_latency + terms.gradient_data + terms.backward;
      lanes.gradient_arrival = std::max(lanes.gradient_arrival, behind + terms.gradient_latency) + terms.gradient_data;
      behind = std::max(without, behind + turn);
      lanes.free = behind;
    }
    if (head == 0) continue;
    const StepTerms& before = stages[head - 1];
    gradient_before = std::max(gradient_before, behind + before.gradient_latency) + before.gradient_data;
    arrivals_[n] = gradient_before;
  }
}

double StepClock::step_time(TransferTimes input, const std::vector<StepTerms>& stages)
{
  input_arrival_ = last_end_ = last_but_one_end_ = 0;
  if (schedule_ == ChainSchedule::Sequential) return sequential_step(input, stages);
  const std::size_t count = stages.size();
  const bool is_gpipe = schedule_ == ChainSchedule::GPipe;
  const std::size_t head = is_gpipe ? count : count - std::min(count, microbatches_);
  lanes_.assign(count, {});
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t warm_up = i < head ? microbatches_ : count - 1 - i;
    if (i == 0) {
      forward_first(input, stages.front(), warm_up);
      continue;
    }
    if (i >= head) lanes_[i].arrived = arrivals_[warm_up];  // the stage before warms up on one more
    forward_through(stages[i], i, warm_up);
  }
  if (is_gpipe) {
    std::fill(arrivals_.begin(), arrivals_.end(), 0.0);
  } else {
    take_turns(input, stages, head);
  }
  double end = 0;
  for (std::size_t i = head; i < count; ++i) end = std::max(end, lanes_[i].free + stages[i].update);
  for (std::size_t i = head; i-- > 0;) {
    double free = lanes_[i].free;
    double gradient = 0;
    const double backward = stages[i].backward;
    const double latency = i > 0 ? stages[i - 1].gradient_latency : 0;
    const double data = i > 0 ? stages[i - 1].gradient_data : 0;
    for (std::size_t m = 0; m < microbatches_; ++m) {
      free = std::max(free, arrivals_[m]) + backward;
      gradient = std::max(gradient, free + latency) + data;
      arrivals_[m] = gradient;
    }
    end = std::max(end, free + stages[i].update);
  }
  return end;
}

double StepClock::sequential_step(TransferTimes input, const std::vector<StepTerms>& stages)
{
  double rest = stages.front().backward;  // of a micro-batch, after its first forward
  for (std::size_t i = 1; i < stages.size(); ++i) {
    const StepTerms& cut = stages[i - 1];
    rest += stages[i].forward + stages[i].backward + cut.output_latency + cut.output_data + cut.gradient_latency +
            cut.gradient_data;
  }
  double free = 0;
  for (std::size_t m = 0; m < microbatches_; ++m) {
    last_but_one_end_ = std::exchange(last_end_, std::max(free, next_input(input)) + stages.front().forward);
    free = last_end_ + rest;
  }
  double end = 0;
  for (const StepTerms& stage : stages) {
    // The last micro-batch passes back from the last stage to the first.
    end = std::max(end, free + stage.update);
    free -= stage.backward + stage.gradient_latency + stage.gradient_data;
  }
  return end;
}

}  // namespace isobar::allocators

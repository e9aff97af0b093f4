#include "allocators/exact/step_tree.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"

#include <algorithm>

namespace isobar::allocators {

namespace {

/// What rounding may add to a bound, relative.
constexpr double rounding = 1e-11;
/// Steps for each stage and micro-batch played, as core/certificates/step_search.cpp counts them.
constexpr std::uint64_t steps_of_play = 40;

}  // namespace

StepTree::StepTree(const PathRelaxation& relaxation, const std::vector<double>& multipliers,
                   std::function<void()> check)
    : tables_(relaxation.tables()),
      relaxation_(relaxation),
      multipliers_(multipliers),
      check_(std::move(check)),
      cost_(tables_.cost()),
      goal_(tables_.goal()),
      turns_(tables_.schedule() == ChainSchedule::Sequential ? 0 : turns_of_step(cost_, goal_)),
      recurrence_(tables_.schedule(), goal_.microbatches),
      used_(tables_.devices())
{
  for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
    const auto count = static_cast<double>(tables_.devices_of(kind).size());
    unused_multipliers_ += count * multipliers_[kind];
    unused_speed_ += count / tables_.least_slowness(kind);
  }
}

StepTree::Answer StepTree::run(double ceiling, double from, std::uint64_t most)
{
  ceiling_ = ceiling;
  largest_turn_ = tables_.weights().alpha * from;
  most_ = most;
  answer_ = {};
  extend(tables_.layers());
  return answer_;
}

void StepTree::take(std::uint64_t steps)
{
  answer_.steps += steps;
  if (answer_.steps > most_) answer_.is_exhaustive = false;
}

/// Tries stages that end at `end`, before the suffix.
void StepTree::extend(std::size_t end)
{
  for (std::size_t kind = 0; kind < tables_.kinds() && answer_.is_exhaustive; ++kind) {
    // Devices of a kind are interchangeable: the first free one stands for all.
    const auto& devices = tables_.devices_of(kind);
    const auto free = std::find_if(devices.begin(), devices.end(), [&](auto device) { return !used_[device]; });
    if (free == devices.end()) continue;
    used_[*free] = true;
    unused_multipliers_ -= multipliers_[kind];
    unused_speed_ -= 1 / tables_.least_slowness(kind);
    put_before(kind, *free, end);
    unused_speed_ += 1 / tables_.least_slowness(kind);
    unused_multipliers_ += multipliers_[kind];
    used_[*free] = false;
  }
}

void StepTree::put_before(std::size_t kind, std::size_t device, std::size_t end)
{
  const std::size_t level = tables_.level_of(suffix_.size());
  const double sum_behind = sum_;
  StageTimes times;
  if (!suffix_.empty()) {
    const std::size_t next = suffix_.back().device;
    if (!goal_.has_free_transfers()) {
      times.output = cost_.output_transfer(device, next, end);
      times.gradient = cost_.gradient_transfer(device, next, end);
    }
    const StageTimes& behind = times_.back();
    sum_ += (behind.forward + behind.backward + times.output.total() + times.gradient.total()).value;
  }
  const double sent = times.output.total().value;
  for (std::size_t first = end; first-- > 0 && answer_.is_exhaustive;) {
    if (tables_.turn(level, kind, first, end) > relaxation_.limit()) break;
    if (!tables_.fits(level, kind, first, end)) {
      if (tables_.surely_too_long(kind, first, end)) break;
      continue;
    }
    take(1 + tables_.groups());
    if (++seen_ % 1024 == 0) check_();
    times.forward = cost_.forward_time(device, first, end - 1);
    times.backward = cost_.backward_time(device, first, end - 1);
    const double compute = (times.forward + times.backward).value;
    suffix_.push_back({device, first, end - 1});
    times_.push_back(times);
    if (first == 0) {
      finish();
    } else if (may_continue(kind, first, compute, sent)) {
      extend(first);
    }
    times_.pop_back();
    suffix_.pop_back();
  }
  sum_ = sum_behind;
}

bool StepTree::may_continue(std::size_t kind, std::size_t first, double compute, double sent)
{
  if (suffix_.size() == tables_.devices()) return false;
  const std::size_t room = relaxation_.rooms().room_left(tables_, tables_.group_of(kind),
                                                         [&](std::uint32_t other) -> bool { return used_[other]; });
  const double beta = tables_.weights().beta;
  const double completion = relaxation_.least_completion(suffix_.size(), first, kind, compute, sent, room);
  if (completion == infinity) return false;
  // One micro-batch in the layers before, and over the cut: what the relaxation adds to the first stage's own time.
  const double own = compute + sent;
  const double before = std::max(0.0, (completion - unused_multipliers_) / beta - own);
  const double slack = rounding * (completion + unused_multipliers_ + ceiling_);
  const Flops work = cost_.forward_work(0, first - 1) + cost_.backward_work(0, first - 1);
  // The largest turn adds at least this much: an even share of the layers before on the unused devices.
  const double turns = std::max(largest_turn_, turns_ * work.value / unused_speed_);
  if (beta * (sum_ - times_.back().output.total().value + own + before) + turns - slack >= ceiling_) return false;
  return before + played_suffix() - slack < ceiling_;
}

double StepTree::played_suffix()
{
  take(steps_of_play * times_.size() * goal_.microbatches);
  in_order_.assign(times_.rbegin(), times_.rend());
  return recurrence_.step_time(TransferTimes{}, in_order_).value;
}

void StepTree::finish()
{
  in_order_.assign(times_.rbegin(), times_.rend());
  for (std::size_t i = 0; i < suffix_.size(); ++i) {
    const auto& [device, first, last] = suffix_[suffix_.size() - 1 - i];
    in_order_[i].update = cost_.update_time(device, first, last);
  }
  const auto input = goal_.has_free_transfers() ? TransferTimes{} : cost_.input_transfer(suffix_.back().device);
  const double step = recurrence_.step_time(input, in_order_).value;
  if (step >= ceiling_) return;
  ceiling_ = step;
  answer_.stages.assign(suffix_.rbegin(), suffix_.rend());
}

}  // namespace isobar::allocators

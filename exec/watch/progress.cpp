#include "exec/watch/progress.hpp"

#include "core/program/chrome_trace.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

Progress::Work::Work(Progress* progress, std::uint64_t step, const Instruction& instruction) : progress_(progress)
{
  if (progress_ != nullptr) number_ = progress_->begin({step, instruction, nullptr, Clock::now()});
}

Progress::Work::Work(Progress* progress, std::uint64_t step, const char* what) : progress_(progress)
{
  if (progress_ != nullptr) number_ = progress_->begin({step, {}, what, Clock::now()});
}

Progress::Work::~Work()
{
  if (progress_ != nullptr) progress_->end(number_);
}

std::uint64_t Progress::begin(Begun work)
{
  const std::lock_guard lock(mutex_);
  was_at_work_ = true;
  begun_.emplace(next_number_, work);
  return next_number_++;
}

void Progress::end(std::uint64_t number)
{
  const std::lock_guard lock(mutex_);
  begun_.erase(number);
}

void Progress::queued(Happened begun, Happened ended)
{
  const std::lock_guard lock(mutex_);
  for (; !queued_.empty() && queued_.front().ended(); queued_.pop_front()) was_at_work_ = true;
  queued_.push_back({std::move(begun), std::move(ended)});
}

Progress::State Progress::state()
{
  const std::lock_guard lock(mutex_);
  const std::uint64_t moves = moves_();
  bool counts = std::exchange(was_at_work_, false) || !begun_.empty() || std::exchange(moves_seen_, moves) != moves;
  for (; !queued_.empty() && queued_.front().ended(); queued_.pop_front()) counts = true;
  if (!queued_.empty() && queued_.front().begun()) counts = true;
  if (counts) last_at_work_ = Clock::now();
  State state;
  state.idle = counts ? Seconds(0) : time_since(last_at_work_);
  if (!begun_.empty()) {
    const auto& [step, instruction, what, began] = begun_.begin()->second;
    state.work = fmt::format("{} of step {}", what != nullptr ? what : name_of_event(instruction), step);
    state.since = time_since(began);
  }
  return state;
}

}  // namespace isobar::exec

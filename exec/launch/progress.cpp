#include "exec/launch/progress.hpp"

#include "core/program/chrome_trace.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

Progress::Work::Work(Progress* progress, std::uint64_t step, const Instruction& instruction) : progress_(progress)
{
  if (progress_ != nullptr) progress_->begin(step, instruction, nullptr);
}

Progress::Work::Work(Progress* progress, std::uint64_t step, const char* what) : progress_(progress)
{
  if (progress_ != nullptr) progress_->begin(step, {}, what);
}

Progress::Work::~Work()
{
  if (progress_ != nullptr) progress_->end();
}

void Progress::begin(std::uint64_t step, const Instruction& instruction, const char* what)
{
  const std::lock_guard lock(mutex_);
  is_at_work_ = true;
  was_at_work_ = true;
  step_ = step;
  instruction_ = instruction;
  what_ = what;
  began_ = Clock::now();
}

void Progress::end()
{
  const std::lock_guard lock(mutex_);
  is_at_work_ = false;
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
  bool counts = std::exchange(was_at_work_, false) || is_at_work_ || std::exchange(moves_seen_, moves) != moves;
  for (; !queued_.empty() && queued_.front().ended(); queued_.pop_front()) counts = true;
  if (!queued_.empty() && queued_.front().begun()) counts = true;
  if (counts) last_at_work_ = Clock::now();
  State state;
  state.idle = counts ? Seconds(0) : time_since(last_at_work_);
  if (is_at_work_) {
    state.work = fmt::format("{} of step {}", what_ != nullptr ? what_ : name_of_event(instruction_), step_);
    state.since = time_since(began_);
  }
  return state;
}

}  // namespace isobar::exec

#include "exec/run/mailbox.hpp"

#include "core/failure.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace isobar::exec {

void Mailbox::put(std::uint64_t microbatch, Message message)
{
  const std::lock_guard lock(mutex_);
  messages_.emplace(microbatch, std::move(message));
}

Message Mailbox::take(std::uint64_t microbatch)
{
  const std::lock_guard lock(mutex_);
  const auto first = messages_.lower_bound(microbatch);
  ensure(first != messages_.end() && first->first == microbatch, "an instruction finds the message that it waited for");
  Message message = std::move(first->second);
  messages_.erase(first);
  return message;
}

void StepControlBoard::post(std::uint64_t step, StepControl control)
{
  constexpr std::size_t most = 4;  // all lanes of a rank are in the same step or the next
  const std::lock_guard lock(mutex_);
  controls_[step] = control;
  if (controls_.size() > most) controls_.erase(controls_.begin());
  changed_.notify_all();
}

bool StepControlBoard::knows(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  return controls_.contains(step);
}

StepControl StepControlBoard::await(std::uint64_t step)
{
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_ || controls_.contains(step); });
  if (!controls_.contains(step)) {
    throw_failure(environment_failure(Failure::Kind::Cancelled, "another lane has failed"));
  }
  return controls_.at(step);
}

void StepControlBoard::clear()
{
  const std::lock_guard lock(mutex_);
  controls_.clear();
}

void StepControlBoard::cancel() noexcept
{
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

}  // namespace isobar::exec

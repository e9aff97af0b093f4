#include "exec/run/step_board.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::string_view stop_message = "stop";
constexpr std::string_view step_prefix = "step ";  // then phase, step, checkpoint and end

std::string message_of(Phase phase, std::uint64_t step, StepControl control)
{
  return std::string(step_prefix) +
         nlohmann::json({static_cast<int>(phase), step, control.checkpoint, control.end}).dump();
}

struct Decision {
  Phase phase;
  std::uint64_t step;
  StepControl control;
};

/// nullopt unless the message is a decision.
std::optional<Decision> decision_from(std::string_view message)
{
  if (!message.starts_with(step_prefix)) return std::nullopt;
  const auto json = nlohmann::json::parse(message.substr(step_prefix.size()), nullptr, false);
  const bool is_valid = json.is_array() && json.size() == 4 && json[0].is_number_unsigned() &&
                        json[1].is_number_unsigned() && json[2].is_boolean() && json[3].is_boolean();
  if (!is_valid || json[0].get<std::uint64_t>() > static_cast<std::uint64_t>(Phase::Evaluation)) return std::nullopt;
  return Decision{static_cast<Phase>(json[0].get<int>()),
                  json[1].get<std::uint64_t>(),
                  {.checkpoint = json[2].get<bool>(), .end = json[3].get<bool>()}};
}

}  // namespace

bool StepBoard::receive(std::string_view message)
{
  if (rank_ == 0) {
    if (message != stop_message) return false;
    const std::lock_guard lock(mutex_);
    stop_requested_ = true;
    return true;
  }
  const auto decision = decision_from(message);
  if (!decision) return false;
  post(decision->phase, decision->step, decision->control);
  return true;
}

void StepBoard::decide(Phase phase, std::uint64_t step, StepControl control)
{
  ensure(rank_ == 0, "rank 0 decides about steps");
  post(phase, step, control);
  if (send_) send_(message_of(phase, step, control));
}

void StepBoard::post(Phase phase, std::uint64_t step, StepControl control)
{
  const std::lock_guard lock(mutex_);
  Decisions& decisions = decisions_.at(static_cast<std::size_t>(phase));
  decisions.end = step + 1;
  if (control.end) decisions.last_step = step;
  if (control.checkpoint) decisions.checkpoints.insert(step);
  changed_.notify_all();
}

std::optional<StepControl> StepBoard::known(Phase phase, std::uint64_t step) const
{
  const Decisions& decisions = decisions_.at(static_cast<std::size_t>(phase));
  if (step >= decisions.end) return std::nullopt;
  return StepControl{.checkpoint = decisions.checkpoints.contains(step), .end = decisions.last_step == step};
}

StepControl StepBoard::await(Phase phase, std::uint64_t step, Deadline deadline)
{
  // In short waits, because a signal wakes no waiting thread.
  constexpr Seconds next_look(0.1);
  const auto began = Clock::now();
  while (true) {
    const Seconds left = deadline.left();  // may ask the heartbeat, so without the lock
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, deadline_in(std::min(next_look, left)),
                          [&] { return cancelled_ || known(phase, step); });
      if (const auto control = known(phase, step)) return *control;
      if (cancelled_) {
        throw_failure(environment_failure(Failure::Kind::Cancelled, fmt::format("rank {}: cancelled", rank_)));
      }
    }
    throw_if_interrupted();
    if (left > Seconds(0)) continue;
    throw_failure(environment_failure(
        Failure::Kind::DeadlinePassed,
        fmt::format("rank {}: no word from rank 0 after {}: deadline passed", rank_, in_seconds(time_since(began)))));
  }
}

void StepBoard::request_stop()
{
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_requested_, true)) return;
  }
  if (rank_ != 0 && send_) send_(std::string(stop_message));
}

bool StepBoard::stop_is_requested()
{
  const std::lock_guard lock(mutex_);
  return stop_requested_;
}

void StepBoard::cancel() noexcept
{
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

}  // namespace isobar::exec

#include "exec/control/step_board.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::string_view stop_message = "stop";
constexpr std::string_view loss_prefix = "loss ";  // then step, rank and addend
constexpr std::string_view turn_prefix = "turn ";  // then turn, rank and number
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

struct Loss {
  std::uint64_t step;
  std::size_t rank;
  double addend;
};

/// nullopt unless the message is an addend of a loss. As in reports, null is not finite.
std::optional<Loss> loss_from(std::string_view message)
{
  if (!message.starts_with(loss_prefix)) return std::nullopt;
  const auto json = nlohmann::json::parse(message.substr(loss_prefix.size()), nullptr, false);
  const bool is_valid = json.is_array() && json.size() == 3 && json[0].is_number_unsigned() &&
                        json[1].is_number_unsigned() && (json[2].is_number() || json[2].is_null());
  if (!is_valid) return std::nullopt;
  return Loss{json[0].get<std::uint64_t>(), json[1].get<std::size_t>(),
              json[2].is_null() ? std::numeric_limits<double>::quiet_NaN() : json[2].get<double>()};
}

struct Turn {
  std::uint64_t turn;
  std::size_t rank;
  std::uint64_t number;
};

/// nullopt unless the message is the number of a turn.
std::optional<Turn> turn_from(std::string_view message)
{
  if (!message.starts_with(turn_prefix)) return std::nullopt;
  const auto json = nlohmann::json::parse(message.substr(turn_prefix.size()), nullptr, false);
  const auto is_number = [](const auto& value) { return value.is_number_unsigned(); };
  if (!json.is_array() || json.size() != 3 || !std::all_of(json.begin(), json.end(), is_number)) return std::nullopt;
  return Turn{json[0].get<std::uint64_t>(), json[1].get<std::size_t>(), json[2].get<std::uint64_t>()};
}

}  // namespace

bool StepBoard::receive(std::string_view message)
{
  if (rank_ == 0) {
    if (const auto loss = loss_from(message)) {
      post_loss(loss->step, loss->rank, loss->addend);
      return true;
    }
    if (const auto turn = turn_from(message)) {
      post_turn(turn->turn, turn->rank, turn->number);
      return true;
    }
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

/// Waits until `arrived`, which is called with the lock. `missing`: what has not arrived, in messages.
template <typename Arrived>
void StepBoard::wait(Deadline deadline, const char* missing, Arrived arrived)
{
  // In short waits, because a signal wakes no waiting thread.
  constexpr Seconds next_look(0.1);
  const auto began = Clock::now();
  while (true) {
    const Seconds left = deadline.left();  // may ask the heartbeat, so without the lock
    {
      std::unique_lock lock(mutex_);
      bool has_arrived = false;
      changed_.wait_until(lock, deadline_in(std::min(next_look, left)),
                          [&] { return (has_arrived = arrived()) || cancelled_; });
      if (has_arrived) return;
      if (cancelled_) {
        throw_failure(environment_failure(Failure::Kind::Cancelled, fmt::format("rank {}: cancelled", rank_)));
      }
    }
    throw_if_interrupted();
    if (left > Seconds(0)) continue;
    throw_failure(environment_failure(
        Failure::Kind::DeadlinePassed,
        fmt::format("rank {}: no {} after {}: deadline passed", rank_, missing, in_seconds(time_since(began)))));
  }
}

StepControl StepBoard::await(Phase phase, std::uint64_t step, Deadline deadline)
{
  std::optional<StepControl> control;
  wait(std::move(deadline), "word from rank 0", [&] { return (control = known(phase, step)).has_value(); });
  return *control;
}

void StepBoard::add_loss(std::uint64_t step, std::size_t rank, double addend)
{
  if (rank_ == 0) return post_loss(step, rank, addend);
  if (send_) send_(std::string(loss_prefix) + nlohmann::json({step, rank, addend}).dump());
}

void StepBoard::post_loss(std::uint64_t step, std::size_t rank, double addend)
{
  const std::lock_guard lock(mutex_);
  losses_[step][rank] = addend;
  changed_.notify_all();
}

bool StepBoard::has_losses(std::uint64_t step, std::size_t ranks)
{
  const std::lock_guard lock(mutex_);
  const auto found = losses_.find(step);
  return ranks == 0 || (found != losses_.end() && found->second.size() == ranks);
}

double StepBoard::await_losses(std::uint64_t step, std::size_t ranks, Deadline deadline)
{
  std::map<std::size_t, double> addends;
  wait(std::move(deadline), "loss of another rank", [&] {
    const auto found = losses_.find(step);
    if (found == losses_.end() || found->second.size() < ranks) return ranks == 0;
    addends = std::move(found->second);
    losses_.erase(found);
    return true;
  });
  double sum = 0;
  for (const auto& [rank, addend] : addends) sum += addend;
  return sum;
}

void StepBoard::add_turn(std::uint64_t turn, std::size_t rank, std::uint64_t number)
{
  if (rank_ == 0) return post_turn(turn, rank, number);
  if (send_) send_(std::string(turn_prefix) + nlohmann::json({turn, rank, number}).dump());
}

void StepBoard::post_turn(std::uint64_t turn, std::size_t rank, std::uint64_t number)
{
  constexpr std::size_t most_turns = 64;  // ranks are fewer turns apart
  const std::lock_guard lock(mutex_);
  const auto& [other, other_number] = turns_.try_emplace(turn, rank, number).first->second;
  if (other_number != number && other_order_.empty()) {
    other_order_ = fmt::format(
        "turn {} has number {} on rank {} and {} on rank {}; all devices must grant turns in one "
        "order, so give all ranks the same mix",
        turn, other_number, other, number, rank);
  }
  if (turns_.size() > most_turns) turns_.erase(turns_.begin());
}

void StepBoard::check_turns()
{
  const std::lock_guard lock(mutex_);
  if (!other_order_.empty()) throw_failure(environment_failure(Failure::Kind::Other, other_order_));
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
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  if (also_cancel_) also_cancel_();
}

}  // namespace isobar::exec

#include "exec/links/deadlines.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::exec {

namespace {

constexpr Seconds default_heartbeat{10};
constexpr Seconds shortest_heartbeat{0.1};
constexpr Seconds longest_limit{1e6};
constexpr double heartbeats_until_dead = 5;

/// Longer than any machine takes to start work that is ready, and any network to deliver a first byte.
constexpr Seconds least_slack{30};
constexpr double steps_until_deadline = 10;

void check_range(const char* option, const std::optional<Seconds>& limit)
{
  if (!limit || (*limit >= shortest_heartbeat && *limit <= longest_limit)) return;
  throw InputError(option, fmt::format("{} is not in {} to {}", in_seconds(*limit), in_seconds(shortest_heartbeat),
                                       in_seconds(longest_limit)));
}

}  // namespace

TimeLimits time_limits(Seconds step, std::optional<Seconds> deadline, std::optional<Seconds> heartbeat)
{
  check_range("--deadline", deadline);
  check_range("--heartbeat", heartbeat);
  TimeLimits limits;
  limits.heartbeat_timeout =
      heartbeat.value_or(deadline ? std::min(default_heartbeat, 0.5 * *deadline) : default_heartbeat);
  limits.heartbeat_interval = limits.heartbeat_timeout / heartbeats_until_dead;
  limits.transfer_is_set = deadline.has_value();
  const Seconds slack = std::max(least_slack, 2 * limits.heartbeat_timeout);
  limits.transfer = deadline ? *deadline : slack + steps_until_deadline * step;
  limits.connect = 2 * limits.transfer;
  if (limits.heartbeat_timeout >= limits.transfer) {
    throw InputError("--heartbeat",
                     fmt::format("{} is not below the deadline of transfers, {}, so dead ranks would be reported as "
                                 "late; lower it, or raise --deadline",
                                 in_seconds(limits.heartbeat_timeout), in_seconds(limits.transfer)));
  }
  return limits;
}

Seconds Deadline::left()
{
  const Seconds left = time_until(end_);
  if (left > Seconds(0) || !idle_) return left;
  end_ = deadline_in(limit_ - idle_());
  return time_until(end_);
}

}  // namespace isobar::exec

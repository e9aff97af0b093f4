#include "exec/deadlines.hpp"

#include "core/errors.hpp"
#include "exec/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

constexpr Seconds usual_heartbeat{10};
constexpr Seconds shortest_heartbeat{0.1};
constexpr Seconds longest_limit{1e6};
constexpr double beats_until_dead = 5;

/// No jitter of a healthy run takes as long, and neither does a pause between steps, such as for a checkpoint.
constexpr Seconds least_slack{30};
constexpr double steps_until_deadline = 10;

constexpr std::size_t fewest_samples = 5;
constexpr std::size_t most_samples = 20;
constexpr double deviations = 10;
constexpr double smallest_deviation_fraction = 0.1;

Seconds median_of(std::vector<Seconds> values)
{
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

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
  limits.heartbeat = heartbeat.value_or(deadline ? std::min(usual_heartbeat, 0.5 * *deadline) : usual_heartbeat);
  limits.beat = limits.heartbeat / beats_until_dead;
  if (!deadline) limits.slack = std::max(least_slack, 2 * limits.heartbeat);
  limits.transfer = deadline ? *deadline : *limits.slack + steps_until_deadline * step;
  limits.connect = 2 * limits.transfer;
  if (limits.heartbeat >= limits.transfer) {
    throw InputError("--heartbeat",
                     fmt::format("{} is not below the deadline of transfers, {}: a rank that is dead would be taken "
                                 "for one that is late",
                                 in_seconds(limits.heartbeat), in_seconds(limits.transfer)));
  }
  return limits;
}

void OperationDeadline::done_after(Seconds wait)
{
  if (!slack_) return;
  longest_ = std::max(longest_, wait);
  if (++done_ < per_step_) return;
  done_ = 0;
  last_longest_.push_back(std::exchange(longest_, Seconds(0)));
  if (last_longest_.size() > most_samples) last_longest_.pop_front();
  if (last_longest_.size() < fewest_samples) return;
  const Seconds median = median_of({last_longest_.begin(), last_longest_.end()});
  std::vector<Seconds> distances;
  for (const Seconds sample : last_longest_) distances.emplace_back(std::abs((sample - median).value));
  const Seconds deviation = std::max(median_of(std::move(distances)), smallest_deviation_fraction * median);
  limit_ = *slack_ + median + deviations * deviation;
}

}  // namespace isobar::exec

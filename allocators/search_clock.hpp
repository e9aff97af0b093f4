#pragma once

#include "allocators/allocator.hpp"
#include "core/base/interrupt.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace isobar::allocators {

/// Thrown to leave a search from any depth.
struct OutOfLimits {};

/// The limits of a search that has a time limit of its own where the user sets none.
inline SearchLimits limited_to(Seconds time, SearchLimits limits)
{
  if (!limits.budget && !limits.time_limit) limits.time_limit = time;
  return limits;
}

/// Tells when a search must stop: its budget or its time is spent, or the process was asked to stop.
class SearchClock {
 public:
  explicit SearchClock(const SearchLimits& limits) : end_(end_of(start_, limits)), left_(limits.budget) {}

  /// Takes one unit of work from the budget; false when none is left.
  bool spend() { return !left_ || (*left_)-- > 0; }

  /// True when the time is over or the process was asked to stop. About 30 ns.
  bool is_over() const { return interrupted() || (end_ && Clock::now() >= *end_); }

  /// As spend(). @throws OutOfLimits when none is left.
  void spend_or_leave()
  {
    if (!spend()) throw OutOfLimits{};
  }
  /// As is_over(). @throws OutOfLimits when it is true.
  void leave_if_over() const
  {
    if (is_over()) throw OutOfLimits{};
  }

  /// The used part of the time limit, from 0; 0 without a limit.
  double used_fraction() const
  {
    if (!end_) return 0;
    const double allowed = (*end_ - start_).count();
    return allowed > 0 ? elapsed().value / allowed : 1;
  }
  /// The time left under the limit; none without a limit.
  std::optional<Seconds> left() const
  {
    if (!end_) return std::nullopt;
    return Seconds(std::max(0.0, std::chrono::duration<double>(*end_ - Clock::now()).count()));
  }

  Seconds elapsed() const { return Seconds(std::chrono::duration<double>(Clock::now() - start_).count()); }

 private:
  using Clock = std::chrono::steady_clock;
  using TimePoint = std::chrono::time_point<Clock, std::chrono::duration<double>>;

  static std::optional<TimePoint> end_of(TimePoint start, const SearchLimits& limits)
  {
    if (!limits.time_limit) return std::nullopt;
    return start + std::chrono::duration<double>(limits.time_limit->value);
  }

  TimePoint start_ = Clock::now();
  std::optional<TimePoint> end_;
  std::optional<std::uint64_t> left_;
};

}  // namespace isobar::allocators

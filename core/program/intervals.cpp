#include "core/program/intervals.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace isobar {

namespace {

/// Relative. Else an update and a computation that begins at its end would move each other in every round of the
/// player.
constexpr double rounding_of_intervals = 1e-12;

/// The first interval that ends after a time.
std::vector<Interval>::const_iterator first_after(const std::vector<Interval>& intervals, double time)
{
  return std::upper_bound(intervals.begin(), intervals.end(), time,
                          [](double at, const Interval& each) { return at < each.end; });
}

}  // namespace

void join(std::vector<Interval>& intervals)
{
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> joined;
  for (const auto& each : intervals) {
    if (!joined.empty() && each.begin <= joined.back().end * (1 + rounding_of_intervals)) {
      joined.back().end = std::max(joined.back().end, each.end);
    } else {
      joined.push_back(each);
    }
  }
  intervals = std::move(joined);
}

bool are_equal(const std::vector<Interval>& some, const std::vector<Interval>& others)
{
  const auto differ_little = [](double a, double b) { return std::abs(a - b) <= rounding_of_intervals * (a + b); };
  return std::equal(some.begin(), some.end(), others.begin(), others.end(), [&](const auto& a, const auto& b) {
    return differ_little(a.begin, b.begin) && differ_little(a.end, b.end);
  });
}

double duration_of(double alone, double begin, double busy_rate, const std::vector<Interval>& busy)
{
  double left = alone;
  double time = begin;
  for (auto interval = first_after(busy, begin); interval != busy.end(); ++interval) {
    const double before = std::max(0.0, interval->begin - time);
    if (before >= left * (1 - rounding_of_intervals)) break;
    left -= before;
    time += before;
    const double within = interval->end - time;
    if (within * busy_rate >= left * (1 - rounding_of_intervals)) return time + left / busy_rate - begin;
    left -= within * busy_rate;
    time = interval->end;
  }
  return time + left - begin;
}

double done_between(double begin, double end, double busy_rate, const std::vector<Interval>& busy)
{
  double done = 0;
  double time = begin;
  for (auto interval = first_after(busy, begin); interval != busy.end() && interval->begin < end; ++interval) {
    const double from = std::max(time, interval->begin);
    const double to = std::min(end, interval->end);
    done += from - time + (to - from) * busy_rate;
    time = to;
  }
  return done + (end - time);
}

}  // namespace isobar

#pragma once

#include <vector>

namespace isobar {

/// A time in which something slows down something else, in seconds.
struct Interval {
  double begin = 0;
  double end = 0;
};

/// Sorts intervals, and joins those that overlap or touch, but for rounding. O(n log n).
void join(std::vector<Interval>& intervals);

/// Whether intervals are the same, but for rounding.
bool are_equal(const std::vector<Interval>& some, const std::vector<Interval>& others);

/// How long something takes that begins at a time and takes `alone` seconds at full rate: at `busy_rate` of it during
/// some intervals, ascending and apart. What ends when an interval begins does not reach into it, whatever the last
/// digits say.
double duration_of(double alone, double begin, double busy_rate, const std::vector<Interval>& busy);

/// How many seconds at full rate are done so from one time to another.
double done_between(double begin, double end, double busy_rate, const std::vector<Interval>& busy);

}  // namespace isobar

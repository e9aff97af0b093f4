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

/// How long work takes that begins at a time, at `busy_rate` during some intervals, ascending and apart, and at `rate`
/// otherwise. Work that ends when an interval begins does not reach into it, whatever the last digits say.
double duration_of(double work, double begin, double rate, double busy_rate, const std::vector<Interval>& busy);

/// The work of such rates from one time to another.
double work_between(double begin, double end, double rate, double busy_rate, const std::vector<Interval>& busy);

}  // namespace isobar

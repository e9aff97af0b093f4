#pragma once

#include "core/units.hpp"

#include <vector>

namespace isobar::results {

/// The time from `begin` to `end`.
struct Interval {
  Seconds begin;
  Seconds end;
};

/// A set of moments, as sorted intervals that neither touch nor overlap.
class Intervals {
 public:
  Intervals() = default;
  /// Union of the intervals; empty ones are dropped. O(n log n).
  explicit Intervals(std::vector<Interval> intervals);

  const std::vector<Interval>& intervals() const { return intervals_; }
  /// Sum of the lengths of the intervals.
  Seconds length() const;

  /// Intersection. O(n + m).
  Intervals operator&(const Intervals& other) const;
  /// Difference: moments of this set that are not in the other. O(n + m).
  Intervals operator-(const Intervals& other) const;

 private:
  std::vector<Interval> intervals_;
};

}  // namespace isobar::results

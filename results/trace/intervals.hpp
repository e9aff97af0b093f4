#pragma once

#include "core/units.hpp"

#include <vector>

namespace isobar::results {

/// From `begin` to `end`.
struct Interval {
  Seconds begin;
  Seconds end;
};

/// Moments of time, as intervals that neither touch nor overlap, in order.
class Intervals {
 public:
  Intervals() = default;
  /// All moments that are in one at least; empty ones count for nothing. O(n log n).
  explicit Intervals(std::vector<Interval> intervals);

  const std::vector<Interval>& intervals() const { return intervals_; }
  Seconds length() const;

  /// Moments that are in both. O(n + m).
  Intervals operator&(const Intervals& other) const;
  /// Moments that are in this and not in the other. O(n + m).
  Intervals operator-(const Intervals& other) const;

 private:
  std::vector<Interval> intervals_;
};

}  // namespace isobar::results

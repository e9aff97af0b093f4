#include "results/trace/intervals.hpp"

#include <algorithm>
#include <utility>

namespace isobar::results {

Intervals::Intervals(std::vector<Interval> intervals)
{
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  for (const auto& interval : intervals) {
    if (interval.end <= interval.begin) continue;
    if (intervals_.empty() || intervals_.back().end < interval.begin) {
      intervals_.push_back(interval);
    } else {
      intervals_.back().end = std::max(intervals_.back().end, interval.end);
    }
  }
}

Seconds Intervals::length() const
{
  Seconds sum;
  for (const auto& interval : intervals_) sum += interval.end - interval.begin;
  return sum;
}

Intervals Intervals::operator&(const Intervals& other) const
{
  Intervals both;
  auto mine = intervals_.begin();
  auto theirs = other.intervals_.begin();
  while (mine != intervals_.end() && theirs != other.intervals_.end()) {
    const Interval common{std::max(mine->begin, theirs->begin), std::min(mine->end, theirs->end)};
    if (common.begin < common.end) both.intervals_.push_back(common);
    if (mine->end < theirs->end) {
      ++mine;
    } else {
      ++theirs;
    }
  }
  return both;
}

Intervals Intervals::operator-(const Intervals& other) const
{
  Intervals rest;
  auto theirs = other.intervals_.begin();
  for (Interval left : intervals_) {
    while (theirs != other.intervals_.end() && theirs->end <= left.begin) ++theirs;
    for (auto each = theirs; each != other.intervals_.end() && each->begin < left.end; ++each) {
      if (left.begin < each->begin) rest.intervals_.push_back({left.begin, each->begin});
      left.begin = std::max(left.begin, each->end);
    }
    if (left.begin < left.end) rest.intervals_.push_back(left);
  }
  return rest;
}

}  // namespace isobar::results

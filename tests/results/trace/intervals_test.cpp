#include "results/trace/intervals.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace isobar::results::intervals_test {
namespace {

using Pairs = std::vector<std::pair<double, double>>;

Pairs pairs_of(const Intervals& moments)
{
  Pairs pairs;
  for (const auto& interval : moments.intervals()) pairs.emplace_back(interval.begin.value, interval.end.value);
  return pairs;
}

Intervals intervals_of(const Pairs& pairs)
{
  std::vector<Interval> intervals;
  for (const auto& [begin, end] : pairs) intervals.push_back({Seconds(begin), Seconds(end)});
  return Intervals(intervals);
}

TEST(Intervals, JoinWhatOverlapsOrTouches)
{
  const auto moments = intervals_of({{5, 6}, {0, 2}, {1, 3}, {3, 4}, {7, 7}});
  EXPECT_EQ(pairs_of(moments), (Pairs{{0, 4}, {5, 6}}));
  EXPECT_EQ(moments.length(), Seconds(5));
  EXPECT_EQ(Intervals().length(), Seconds(0));
}

TEST(Intervals, IntersectAndSubtract)
{
  const auto some = intervals_of({{0, 4}, {5, 9}});
  const auto others = intervals_of({{1, 2}, {3, 6}, {8, 10}});
  EXPECT_EQ(pairs_of(some & others), (Pairs{{1, 2}, {3, 4}, {5, 6}, {8, 9}}));
  EXPECT_EQ(pairs_of(some - others), (Pairs{{0, 1}, {2, 3}, {6, 8}}));
}

/// The whole seconds within the moments.
std::set<int> seconds_of(const Intervals& moments)
{
  std::set<int> seconds;
  for (const auto& [begin, end] : pairs_of(moments)) {
    for (int second = static_cast<int>(begin); second < static_cast<int>(end); ++second) seconds.insert(second);
  }
  return seconds;
}

RC_GTEST_PROP(Intervals, AreSetsOfMoments, ())
{
  const auto some_intervals = [] {
    Pairs pairs;
    for (const auto& [begin, length] : *rc::gen::container<std::vector<std::pair<int, int>>>(
             rc::gen::pair(rc::gen::inRange(0, 40), rc::gen::inRange(0, 8)))) {
      pairs.emplace_back(begin, begin + length);
    }
    return intervals_of(pairs);
  };
  const Intervals a = some_intervals();
  const Intervals b = some_intervals();
  const auto in_a = seconds_of(a);
  const auto in_b = seconds_of(b);
  std::set<int> both;
  std::set<int> rest;
  for (const int second : in_a) (in_b.count(second) > 0 ? both : rest).insert(second);
  RC_ASSERT(seconds_of(a & b) == both);
  RC_ASSERT(seconds_of(a - b) == rest);
  RC_ASSERT((a & b).length() + (a - b).length() == a.length());
}

}  // namespace
}  // namespace isobar::results::intervals_test

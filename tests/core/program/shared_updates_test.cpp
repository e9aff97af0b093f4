#include "core/program/shared_updates.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <map>
#include <vector>

namespace isobar::shared_updates_test {
namespace {

/// When each update ends.
std::map<std::size_t, double> ends_of(SharedUpdates& updates)
{
  std::map<std::size_t, double> ends;
  while (updates.next() < std::numeric_limits<double>::infinity()) {
    for (const std::size_t owner : updates.advance()) ends[owner] = updates.now();
  }
  return ends;
}

TEST(SharedUpdates, ShareOneCoreAtTheRateOfTheTime)
{
  const std::vector<Interval> busy = {{0, 1}};
  SharedUpdates updates(0.5, 1, busy);
  updates.begin(0, 0, 0.5);
  updates.begin(1, 0, 1.5);
  // A quarter of a core each in the first second; then half, and all of it from 1.5 s on.
  EXPECT_EQ(ends_of(updates), (std::map<std::size_t, double>{{0, 1.5}, {1, 2.5}}));
}

TEST(SharedUpdates, TakeACoreEachWhileThereAreEnough)
{
  const std::vector<Interval> busy;
  SharedUpdates updates(1, 2, busy);
  updates.begin(0, 0, 4);
  updates.begin(1, 1, 2);
  updates.begin(2, 2, 1);
  // Two cores for three updates from 2 s on, with 2, 1 and 1 s left: 1 s of each takes 1.5 s.
  EXPECT_EQ(ends_of(updates), (std::map<std::size_t, double>{{0, 4.5}, {1, 3.5}, {2, 3.5}}));
}

TEST(SharedUpdates, EndAsTheyBeginIfTheyTakeNoTime)
{
  const std::vector<Interval> busy;
  SharedUpdates updates(1, 1, busy);
  updates.begin(0, 3, 0);
  EXPECT_EQ(ends_of(updates), (std::map<std::size_t, double>{{0, 3.0}}));
}

}  // namespace
}  // namespace isobar::shared_updates_test

#include "core/order/microbatch_pattern.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace isobar::microbatch_pattern_test {
namespace {

using testing::ElementsAre;

std::vector<std::size_t> first(const MicrobatchPattern& pattern, std::uint64_t microbatches)
{
  std::vector<std::size_t> replicas;
  for (std::uint64_t m = 0; m < microbatches; ++m) replicas.push_back(pattern.replica_of(m));
  return replicas;
}

TEST(MicrobatchPattern, TakesTurnsByTheCounts)
{
  EXPECT_THAT(first(MicrobatchPattern({5}), 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(first(MicrobatchPattern({2, 2, 2}), 6), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(first(MicrobatchPattern({16, 8}), 6), ElementsAre(0, 1, 0, 0, 1, 0));
  EXPECT_THAT(first(MicrobatchPattern({1, 3}), 4), ElementsAre(1, 0, 1, 1));
}

TEST(MicrobatchPattern, GivesEachReplicaItsCountEvenlyAndLooksUpBothWays)
{
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> counts(1 + random() % 5);
    for (auto& count : counts) count = 1 + random() % 12;
    const std::uint64_t all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    const MicrobatchPattern pattern(counts);
    std::vector<std::uint64_t> taken(counts.size(), 0);
    for (std::uint64_t m = 0; m < all; ++m) {
      const std::size_t replica = pattern.replica_of(m);
      ASSERT_EQ(pattern.index_of(m), taken[replica]);
      ASSERT_EQ(pattern.nth(replica, taken[replica]), m);
      ++taken[replica];
      for (std::size_t r = 0; r < counts.size(); ++r) {
        const double due = static_cast<double>(counts[r] * (m + 1)) / static_cast<double>(all);
        // Sainte-Laguë's method may be further from a count than the nearest whole number, but by little.
        ASSERT_LT(std::abs(due - static_cast<double>(taken[r])), 2) << round;
      }
    }
    ASSERT_EQ(taken, counts);
  }
}

TEST(MicrobatchPattern, RefusesCountsThatRepeatTooLate)
{
  EXPECT_EQ(MicrobatchPattern({4'000'000'000, 2'000'000'000}).nth(1, 1'999'999'999), 5'999'999'998U);
  try {
    const MicrobatchPattern pattern({1'048'576, 1});
    FAIL() << "no fault";
  } catch (const InputError& fault) {
    EXPECT_STREQ(fault.what(),
                 "the counts of replicas repeat only after 1048577 micro-batches; use counts with a common divisor, so "
                 "that they repeat after at most 1048576");
  }
}

}  // namespace
}  // namespace isobar::microbatch_pattern_test

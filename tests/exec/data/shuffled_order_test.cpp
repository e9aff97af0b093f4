#include "exec/data/shuffled_order.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace isobar::exec::shuffled_order_test {
namespace {

std::vector<std::uint64_t> order_of(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch)
{
  const ShuffledOrder order(count, seed, epoch);
  std::vector<std::uint64_t> values(count);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = order.at(i);
  return values;
}

RC_GTEST_PROP(ShuffledOrder, HasEverySampleOnce, (std::uint64_t seed, std::uint64_t epoch))
{
  const auto count = *rc::gen::inRange<std::uint64_t>(1, 3000);
  auto values = order_of(count, seed, epoch);
  std::sort(values.begin(), values.end());
  std::vector<std::uint64_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  RC_ASSERT(values == all);
}

RC_GTEST_PROP(ShuffledOrder, StaysWithinHugeCounts, (std::uint64_t seed, std::uint64_t epoch))
{
  const auto count = *rc::gen::inRange<std::uint64_t>(1, std::uint64_t{1} << 62U);
  const auto position = *rc::gen::inRange<std::uint64_t>(0, count);
  RC_ASSERT(ShuffledOrder(count, seed, epoch).at(position) < count);
}

TEST(ShuffledOrder, DiffersByEpochAndSeed)
{
  const auto order = order_of(100, 1, 0);
  EXPECT_EQ(order, order_of(100, 1, 0));
  EXPECT_NE(order, order_of(100, 1, 1));
  EXPECT_NE(order, order_of(100, 2, 0));
}

TEST(ShuffledOrder, StaysTheSameFromVersionToVersion)
{
  // Resumed runs depend on it.
  EXPECT_EQ(order_of(10, 1, 0), (std::vector<std::uint64_t>{3, 6, 2, 7, 4, 5, 1, 8, 0, 9}));
}

TEST(ShuffledOrder, IsEven)
{
  // Each of 16 samples is equally often at each of 16 positions: chi-square with 225 degrees of freedom exceeds 310
  // once in 10,000 times; the seeds are fixed.
  constexpr std::uint64_t count = 16;
  constexpr std::uint64_t epochs = 4096;
  std::vector<double> times(count * count);
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto order = order_of(count, 7, epoch);
    for (std::uint64_t i = 0; i < count; ++i) times[i * count + order[i]] += 1;
  }
  constexpr double expected = static_cast<double>(epochs) / count;
  double chi_square = 0;
  for (const double time : times) chi_square += (time - expected) * (time - expected) / expected;
  EXPECT_LT(chi_square, 310);
}

}  // namespace
}  // namespace isobar::exec::shuffled_order_test

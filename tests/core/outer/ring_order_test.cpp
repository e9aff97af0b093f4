#include "core/outer/ring_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace isobar::ring_order_test {
namespace {

using Costs = std::vector<std::vector<double>>;

Costs random_costs(std::mt19937_64& random, std::size_t places)
{
  Costs costs(places, std::vector<double>(places, 0));
  for (auto& row : costs) {
    for (auto& cost : row) cost = static_cast<double>(1 + random() % 20);  // small, so that many rings are equal
  }
  return costs;
}

std::pair<double, double> cost_of(const std::vector<std::size_t>& order, const Costs& costs)
{
  std::pair<double, double> cost{0, 0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double hop = costs[order[i]][order[(i + 1) % order.size()]];
    cost = {std::max(cost.first, hop), cost.second + hop};
  }
  return cost;
}

std::vector<std::size_t> order_of(const Costs& costs)
{
  return ring_order(costs.size(), [&](std::size_t from, std::size_t to) { return costs[from][to]; });
}

std::pair<double, double> best_of_all(const Costs& costs)
{
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::pair<double, double> best{std::numeric_limits<double>::infinity(), 0};
  do {
    best = std::min(best, cost_of(order, costs));
  } while (std::next_permutation(order.begin() + 1, order.end()));
  return best;
}

TEST(RingOrder, IsTheBestOfAllUpToEightPlaces)
{
  std::mt19937_64 random(3);
  for (std::size_t places = 1; places <= 8; ++places) {
    for (int round = 0; round < 20; ++round) {
      const auto costs = random_costs(random, places);
      ASSERT_EQ(cost_of(order_of(costs), costs), best_of_all(costs)) << places << " places, round " << round;
    }
  }
}

TEST(RingOrder, HasEachPlaceOnceAndBeginsWithTheFirst)
{
  std::mt19937_64 random(4);
  for (const std::size_t places : {2, 12, 16, 17, 40}) {
    auto order = order_of(random_costs(random, places));
    EXPECT_EQ(order.front(), 0U);
    std::ranges::sort(order);
    for (std::size_t i = 0; i < places; ++i) ASSERT_EQ(order[i], i);
  }
}

TEST(RingOrder, OfManyPlacesIsNeverSlowerThanTheirNumbers)
{
  std::mt19937_64 random(5);
  for (int round = 0; round < 10; ++round) {
    const auto costs = random_costs(random, 30);
    std::vector<std::size_t> numbers(30);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    EXPECT_LT(cost_of(order_of(costs), costs), cost_of(numbers, costs));
  }
}

TEST(RingOrder, FollowsTheDirectionsOfHops)
{
  // Fast from each place to the next, slow back.
  Costs costs(5, std::vector<double>(5, 9));
  for (std::size_t i = 0; i < 5; ++i) costs[i][(i + 2) % 5] = 1;
  EXPECT_EQ(order_of(costs), (std::vector<std::size_t>{0, 2, 4, 1, 3}));
}

}  // namespace
}  // namespace isobar::ring_order_test

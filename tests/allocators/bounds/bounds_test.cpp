#include "allocators/bounds/bounds.hpp"

#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace isobar::allocators::bounds_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

double bound_of(const CostModel& cost, Objective objective, std::uint64_t microbatches)
{
  return objective_bound(
             cost, {objective, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), microbatches})
      .value.value;
}

}  // namespace

TEST(ObjectiveBound, IsTheClosedFormWithoutMemoryLimits)
{
  const Workload workload = chain(std::vector<double>(100, 1));  // 300 FLOP in all, 3 a layer
  const Cluster platform = cluster({2, 4, 1});
  const CostModel cost(workload, platform);
  EXPECT_NEAR(bound_of(cost, Objective::Bottleneck, 1), 300.0 / 7, 1e-9);
  EXPECT_NEAR(bound_of(cost, Objective::Sequential, 1), 300.0 / 4, 1e-9);
  EXPECT_NEAR(bound_of(cost, Objective::Pipeline, 1), 300.0 / 4, 1e-9);
  // M = 4: one device 4 x 75, two 5 x 50, three 6 x 300 / 7 = 257.1.
  EXPECT_NEAR(bound_of(cost, Objective::Pipeline, 4), 250, 1e-9);
}

TEST(ObjectiveBound, IsNotBelowTheHeaviestLayerOnTheFastestDevice)
{
  const Workload workload = chain({1, 100, 1});
  const Cluster platform = cluster({2, 4, 1});
  const CostModel cost(workload, platform);
  EXPECT_NEAR(bound_of(cost, Objective::Bottleneck, 1), 300.0 / 4, 1e-9);
}

TEST(ObjectiveBound, CountsWhatMemoryForbids)
{
  // Ten equal layers of 10 bytes; the fast device holds two of them, so the slow one works on eight.
  Workload workload = chain(std::vector<double>(10, 1), 0, 10, 0);
  Cluster platform = cluster({100, 1});
  platform.devices[0].memory = Bytes(20);
  const CostModel cost(workload, platform);
  EXPECT_NEAR(bound_of(cost, Objective::Bottleneck, 1), 24, 1e-9);
  EXPECT_NEAR(bound_of(cost, Objective::Sequential, 1), 24 + 6 / 100.0, 1e-9);
}

TEST(ObjectiveBound, IsInfiniteWhenAllMemoryTogetherIsTooSmall)
{
  const Workload workload = chain(std::vector<double>(10, 1), 0, 10, 0);
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1)}, 49);
  const CostModel cost(workload, platform);
  EXPECT_TRUE(std::isinf(bound_of(cost, Objective::Bottleneck, 1)));
}

TEST(ObjectiveBound, IsNotAboveTheBestOfAllOrders)
{
  std::mt19937_64 random(99);
  double tightest = 0;
  for (int instance = 0; instance < 1200; ++instance) {
    const std::size_t devices = 1 + random() % 4;
    const std::size_t layers = 1 + random() % 6;
    const Workload workload = random_chain(random, layers);
    const double memory = instance % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    const Cluster cluster = random_cluster(random, devices, memory);
    const CostModel cost(workload, cluster);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const double bound = objective_bound(cost, goals[i]).value.value;
      if (std::isinf(least[i])) continue;
      ASSERT_LE(bound, least[i] * (1 + 1e-9)) << "instance " << instance << ", goal " << i;
      if (devices > 1 && layers > 1) tightest = std::max(tightest, bound / least[i]);
    }
  }
  EXPECT_GT(tightest, 0.99);  // the bound is not trivial
}

}  // namespace isobar::allocators::bounds_test

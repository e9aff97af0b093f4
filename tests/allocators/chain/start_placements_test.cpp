#include "allocators/chain/start_placements.hpp"
#include "allocators/registry.hpp"

#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <random>

namespace isobar::allocators::start_placements_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

}  // namespace

TEST(BestStart, IsNoWorseThanThePlanOfEachAllocatorThatItTries)
{
  std::mt19937_64 random(31);
  for (int instance = 0; instance < 60; ++instance) {
    const Workload workload = random_chain(random, 1 + random() % 15);
    const Cluster platform = random_cluster(random, 1 + random() % 6, instance % 2 == 0 ? 1e9 : 40);
    const CostModel cost(workload, platform);
    for (const Goal& goal : all_goals(1 + random() % 5)) {
      const auto start = best_start({cost, goal, {}}, SearchClock({}));
      ASSERT_FALSE(start.empty());
      for (const char* allocator : {"even", "sky-dynamic-fixed"}) {
        const Plan plan = allocate(allocator, workload, platform, goal, {});
        if (plan.stages.empty()) continue;
        ASSERT_TRUE(memory_holds(cost, start, goal));
        EXPECT_LE(cost.evaluate(start, goal).objective.value, plan.objective->value * (1 + 1e-12));
      }
    }
  }
}

TEST(BestStart, FillsTheFastestDeviceForOneMicroBatchAtATime)
{
  const Workload workload = chain({1, 1, 1, 1});
  const Cluster platform = cluster({1, 3, 2}, {Seconds(0.1), BytesPerSecond(1e9)});
  const CostModel cost(workload, platform);
  const auto start = best_start({cost, Goal::with_defaults(Objective::Sequential), {}}, SearchClock({}));
  ASSERT_EQ(start.size(), 1U);
  EXPECT_EQ(start.front().device, 1U);
}

}  // namespace isobar::allocators::start_placements_test

#ifdef ISOBAR_HAS_CBC

#include "allocators/sky/milp.hpp"
#include "allocators/registry.hpp"

#include "core/base/child_process.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <random>
#include <string>

namespace isobar::allocators::milp_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

Goal sky_goal()
{
  return {Objective::Bottleneck, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), 8};
}

}  // namespace

TEST(SkyOptimal, FindsTheEvenSplitOfFourNodesWithinItsGap)
{
  // CBC 2.10.8 accepts 276.860 GMAC x factor, the even split, for 4 nodes and 10 encoders.
  const Plan plan = allocate("sky-optimal", sky_bert(10), sky_cluster(3), sky_goal(), {});
  EXPECT_EQ(plan.outcome, Outcome::Feasible);
  EXPECT_NEAR(plan.objective->value * 9.3e12 / 6, 276.859645e9, 1e3);
}

TEST(SkyOptimal, IsWithinItsGapOfTheBestOfAllOrders)
{
  std::mt19937_64 random(3);
  std::size_t infeasible = 0;
  for (int instance = 0; instance < 25; ++instance) {
    Workload workload = random_chain(random, 2 + random() % 5);
    workload.memory_model = MemoryModel::Sky;
    const Cluster platform = random_cluster(random, 1 + random() % 3, instance % 3 == 0 ? 5 : 20);
    for (auto& layer : workload.layers) layer.backward = layer.forward * 2;
    const CostModel cost(workload, platform);
    const double least = least_objectives(cost, {sky_goal()}, true).front();
    const Plan plan = allocate("sky-optimal", workload, platform, sky_goal(), {});
    if (std::isinf(least)) {
      ++infeasible;
      EXPECT_EQ(plan.outcome, Outcome::Infeasible);
      EXPECT_FALSE(plan.reason.empty());
      continue;
    }
    ASSERT_TRUE(plan.objective.has_value()) << name_of(plan.outcome) << " " << plan.reason;
    EXPECT_LE(plan.objective->value * 0.8, least * (1 + 1e-6));
    EXPECT_LE(plan.objective_bound->value, least * (1 + 1e-9));
  }
  EXPECT_GT(infeasible, 0U);
}

TEST(SkyOptimal, TimesOutWhenItsLimitsComeBeforeAPlan)
{
  // The even start breaks the memory of workers 5, 6 and 7, and CBC finds nothing else (not in 384 s).
  SearchLimits limits;
  limits.time_limit = Seconds(1);
  const Plan plan = allocate("sky-optimal", sky_bert(80), sky_cluster(15), sky_goal(), limits);
  EXPECT_EQ(plan.outcome, Outcome::TimedOut);
  EXPECT_TRUE(plan.stages.empty());
  EXPECT_EQ(plan.reason,
            "CBC found no plan within the limits; raise --time-limit or --budget, or use allocator chain-dp");
}

TEST(SkyOptimal, GivesTheSameAnswerForTheSameBudget)
{
  SearchLimits limits;
  limits.budget = 20;
  const Plan first = allocate("sky-optimal", sky_bert(6), sky_cluster(5), sky_goal(), limits);
  const Plan second = allocate("sky-optimal", sky_bert(6), sky_cluster(5), sky_goal(), limits);
  ASSERT_TRUE(first.objective.has_value());
  EXPECT_EQ(first.objective, second.objective);
  EXPECT_EQ(first.outcome, second.outcome);
}

TEST(SkyOptimal, StopsWhenInterruptedAndKeepsItsPlan)
{
  // In a child process: an interrupted process stays interrupted.
  const auto child = run_in_child(
      [] {
        catch_interrupts();
        timer_t timer = {};
        sigevent event = {};
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGINT;
        const itimerspec soon = {{0, 0}, {1, 0}};
        ensure(
            timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0 && timer_settime(timer, 0, &soon, nullptr) == 0,
            "a timer can be set");
        const Plan plan = allocate("sky-optimal", sky_bert(24), sky_cluster(15), sky_goal(), {});
        return std::string(interrupted() ? "interrupted, " : "") + std::string(name_of(plan.outcome)) + ", " +
               std::to_string(plan.stages.size()) + " stages";
      },
      Seconds(250));
  EXPECT_EQ(child.output_or_throw(), "interrupted, timed_out, 15 stages");
}

}  // namespace isobar::allocators::milp_test

#endif

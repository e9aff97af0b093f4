#include "allocators/chain/local_search.hpp"
#include "allocators/registry.hpp"
#include "core/check/plan_checker.hpp"

#include "allocators/bounds/bounds.hpp"
#include "core/base/child_process.hpp"
#include "core/base/interrupt.hpp"
#include "core/costs/step_recurrence.hpp"
#include "core/errors.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <random>

namespace isobar::allocators::local_search_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

Plan search(const Workload& workload, const Cluster& platform, const Goal& goal, const SearchLimits& limits = {})
{
  return allocate("local-search", workload, platform, goal, limits);
}

SearchLimits budget_of(std::uint64_t moves, std::uint64_t seed = 1)
{
  SearchLimits limits;
  limits.budget = moves;
  limits.seed = seed;
  return limits;
}

std::string without_search_time(Plan plan)
{
  plan.search_time = Seconds(0);
  return plan_to_json(plan);
}

}  // namespace

TEST(LocalSearch, FindsTheBestOfAllOrdersOfNearlyAllSmallInstances)
{
  std::mt19937_64 random(21);
  std::size_t answers = 0;
  std::size_t best = 0;
  for (int instance = 0; instance < 25; ++instance) {
    const Workload workload = random_chain(random, 2 + random() % 5);
    const Cluster platform = random_cluster(random, 1 + random() % 4, instance % 2 == 0 ? 1e9 : 30);
    const CostModel cost(workload, platform);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const Plan plan = search(workload, platform, goals[i]);
      if (std::isinf(least[i])) {
        EXPECT_EQ(plan.outcome, Outcome::Infeasible);
        EXPECT_FALSE(plan.reason.empty());
        continue;
      }
      ++answers;
      ASSERT_TRUE(plan.objective.has_value()) << plan.reason;
      EXPECT_GE(plan.objective->value, least[i] * (1 - 1e-9));
      best += plan.objective->value <= least[i] * (1 + 1e-9) ? 1U : 0U;
    }
  }
  EXPECT_GT(answers, 400U);
  // A few optima lie behind a chain of moves that are all much worse.
  EXPECT_GE(static_cast<double>(best), 0.99 * static_cast<double>(answers));
}

TEST(LocalSearch, IsNeverWorseThanItsStart)
{
  std::mt19937_64 random(22);
  for (int instance = 0; instance < 60; ++instance) {
    const Workload workload = random_chain(random, 2 + random() % 20);
    const Cluster platform = random_cluster(random, 1 + random() % 8, 1e9);
    const CostModel cost(workload, platform);
    for (const Goal& goal : all_goals(4)) {
      const auto start = random_placement(random, cost.layers(), cost.devices());
      SearchClock clock({});
      const auto stages = improve(cost, goal, start, clock, random(), Seconds(0), random() % 300);
      EXPECT_LE(cost.evaluate(stages, goal).objective, cost.evaluate(start, goal).objective);
      EXPECT_TRUE(memory_holds(cost, stages, goal));
      EXPECT_EQ(faults_of(plan_of(stages, cost, goal), workload, platform), std::vector<std::string>());
    }
  }
}

TEST(LocalSearch, KeepsAStartWhenItHasNoBudget)
{
  const Workload workload = sky_bert(10);
  const Cluster platform = sky_cluster(7);
  SearchLimits limits = budget_of(0);
  limits.start = {{3, 0, 10}, {1, 11, 20}, {6, 21, 32}};
  const Plan plan = search(workload, platform, Goal{}, limits);
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[0].device(), "node-4");
  EXPECT_EQ(plan.stages[1].last_layer, 20U);
  EXPECT_EQ(plan.outcome, Outcome::Feasible);
}

TEST(LocalSearch, GivesTheSameBytesForTheSameSeedAndBudget)
{
  for (const bool polish : {false, true}) {
    for (const std::uint64_t seed : {1U, 2U}) {
      SearchLimits limits = budget_of(50'000, seed);
      limits.polish = polish;
      EXPECT_EQ(without_search_time(search(sky_bert(24), sky_cluster(15), Goal{}, limits)),
                without_search_time(search(sky_bert(24), sky_cluster(15), Goal{}, limits)));
    }
  }
}

TEST(LocalSearch, BeatsTheOrderOfTheFileOnSkysCluster)
{
  const Workload workload = sky_bert(80);
  const Cluster platform = sky_cluster(31);
  for (const auto objective : {Objective::Sequential, Objective::Bottleneck, Objective::Pipeline}) {
    const Goal goal = Goal::with_defaults(objective);
    const Plan in_order = allocate("chain-dp", workload, platform, goal, {});
    const Plan searched = search(workload, platform, goal, budget_of(300'000));
    EXPECT_LE(*searched.objective, *in_order.objective) << name_of(objective);
  }
}

TEST(LocalSearch, StopsAtOnceAtItsBound)
{
  // Equal layers on equal devices: the even split meets the bound.
  SearchLimits limits;
  limits.time_limit = Seconds(1e6);  // a search that continued would not end
  const Plan plan =
      search(chain(std::vector<double>(32, 1)), cluster(std::vector<double>(8, 1)),
             {Objective::Bottleneck, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), 8}, limits);
  EXPECT_EQ(plan.outcome, Outcome::Optimal);
}

TEST(LocalSearch, RepairsAStartWhoseMemoryDoesNotHold)
{
  // 20 layers of 1 byte on devices of 8, 7 and 6: the even split fails, and so does leaving out any device.
  Workload workload = chain(std::vector<double>(20, 1));
  workload.memory_model = MemoryModel::Sky;
  for (auto& layer : workload.layers) layer.sky_memory = Bytes(1);
  Cluster platform = cluster({1, 1, 1});
  for (std::size_t i = 0; i < 3; ++i) platform.devices[i].memory = Bytes(8.0 - static_cast<double>(i));
  const CostModel cost(workload, platform);
  const Goal goal;
  SearchClock clock({});
  const auto stages = improve(cost, goal, {{2, 0, 17}, {1, 18, 18}, {0, 19, 19}}, clock, 1, Seconds(0), 100'000);
  EXPECT_TRUE(memory_holds(cost, stages, goal));
}

TEST(LocalSearch, SaysWhatTheNearestPlacementLacksWhenNoneFits)
{
  Workload workload = chain(std::vector<double>(20, 1));
  workload.memory_model = MemoryModel::Sky;
  for (auto& layer : workload.layers) layer.sky_memory = Bytes(0x1p30);
  const Plan plan = search(workload, cluster({1, 1}, {Seconds(0), BytesPerSecond(1)}, 9 * 0x1p30), Goal{});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_THAT(plan.reason, testing::StartsWith("found no placement that fits; in the nearest one, device d"));
  EXPECT_EQ(search(workload, cluster({1, 1}, {Seconds(0), BytesPerSecond(1)}, 0.5 * 0x1p30), Goal{}).reason,
            "layer 0 needs 1.00 GiB; the largest device, d0, has 512 MiB; 512 MiB more memory there would be enough");
}

TEST(LocalSearch, KeepsTheTimeLimit)
{
  for (const bool polish : {false, true}) {
    for (const auto objective : {Objective::Sequential, Objective::Pipeline, Objective::Step}) {
      SearchLimits limits;
      limits.time_limit = Seconds(1);
      limits.polish = polish;
      const Plan plan = search(sky_bert(160), sky_cluster(63), Goal::with_defaults(objective), limits);
      EXPECT_EQ(plan.outcome, Outcome::TimedOut);
      EXPECT_FALSE(plan.stages.empty());
      EXPECT_GT(plan.search_time.value, 0.9);
    }
  }
}

TEST(LocalSearch, StopsWhenInterruptedAndKeepsItsPlan)
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
        SearchLimits limits;
        limits.time_limit = Seconds(1e6);
        const Plan plan = search(sky_bert(24), sky_cluster(15), Goal{}, limits);
        return std::string(interrupted() ? "interrupted, " : "") + std::string(name_of(plan.outcome)) +
               (plan.stages.empty() ? ", no stages" : ", stages");
      },
      Seconds(250));
  EXPECT_EQ(child.output_or_throw(), "interrupted, timed_out, stages");
}

TEST(LocalSearch, PolishesTheStepTimeOfTheSchedule)
{
  std::mt19937_64 random(23);
  for (int instance = 0; instance < 20; ++instance) {
    const Workload workload = random_chain(random, 4 + random() % 10);
    const Cluster platform = random_cluster(random, 2 + random() % 5, instance % 2 == 0 ? 1e9 : 60);
    for (const Goal& goal : all_goals(6)) {
      SearchLimits limits = budget_of(20'000);
      const Plan plain = search(workload, platform, goal, limits);
      limits.polish = true;
      const Plan polished = search(workload, platform, goal, limits);
      if (plain.stages.empty()) continue;
      std::vector<StagePlacement> stages;
      for (const auto& stage : plain.stages) {
        stages.push_back({*platform.device_index(stage.device()), stage.first_layer, stage.last_layer});
      }
      EXPECT_LE(polished.predicted->step_time, step_time_by_recurrence(CostModel(workload, platform), stages, goal));
    }
  }
}

TEST(LocalSearch, LeavesOutADeviceThatIsSlowAndFarAway)
{
  // Four equal devices near each other; the fifth, third in the file, is slow and a second away.
  const Workload workload = chain(std::vector<double>(24, 1), 0, 0, 1);
  Cluster platform = cluster({10, 10, 0.1, 10, 10});
  const std::size_t nodes = platform.devices.size() + 1;
  std::vector<Path> paths(nodes * nodes, {Seconds(1e-3), BytesPerSecond(1e6)});
  for (std::size_t i = 0; i < nodes; ++i) paths[2 * nodes + i].latency = paths[i * nodes + 2].latency = Seconds(1);
  platform.network = std::make_shared<MatrixNetwork>(nodes, paths);
  for (const auto schedule : {ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
    SearchLimits limits = budget_of(20'000);
    limits.start = {{0, 0, 4}, {1, 5, 9}, {2, 10, 10}, {3, 11, 17}, {4, 18, 23}};
    const Plan plan =
        search(workload, platform, {Objective::Step, Communication::Played, choice_of(schedule), 8}, limits);
    EXPECT_EQ(plan.stages.size(), 4U);
    for (const auto& stage : plan.stages) EXPECT_NE(stage.device(), "d2");
  }
}

TEST(LocalSearch, ReturnsItsBestDistinctPlacements)
{
  const Workload workload = sky_bert(24);
  const Cluster platform = sky_cluster(15);
  SearchLimits limits = budget_of(50'000);
  limits.candidates = 4;
  const auto plans = allocate_candidates("local-search", workload, platform, Goal{}, limits);
  ASSERT_GT(plans.size(), 1U);
  EXPECT_LE(plans.size(), 4U);
  std::vector<std::string> hashes;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(faults_of(plans[i], workload, platform), std::vector<std::string>());
    EXPECT_THAT(hashes, testing::Not(testing::Contains(hash_of(plans[i]))));
    hashes.push_back(hash_of(plans[i]));
  }
  EXPECT_TRUE(std::is_sorted(plans.begin(), plans.end(),
                             [](const Plan& a, const Plan& b) { return *a.objective < *b.objective; }));
  EXPECT_EQ(without_search_time(plans.front()),
            without_search_time(search(workload, platform, Goal{}, budget_of(50'000))));
  const Goal pipeline = Goal::with_defaults(Objective::Pipeline);
  EXPECT_EQ(allocate_candidates("local-search", workload, platform, pipeline, limits).size(), 1U);
}

TEST(LocalSearch, StartsOnAGraphWhereItsChainHasCuts)
{
  // A block with a shortcut over layers 1 and 2: cuts are possible before 1 and before 4 only.
  Workload workload = chain({1, 1, 1, 1, 1});
  workload.layers[3].inputs = {0, 2};
  const Cluster platform = cluster({1, 1, 1});
  SearchLimits limits = budget_of(0);
  limits.start = {{2, 0, 0}, {1, 1, 3}, {0, 4, 4}};
  const Plan plan = search(workload, platform, Goal{}, limits);
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[1].first_layer, 1U);
  EXPECT_EQ(plan.stages[1].last_layer, 3U);
  limits.start = {{2, 0, 1}, {1, 2, 4}};
  try {
    search(workload, platform, Goal{}, limits);
    FAIL() << "a cut inside a block was taken";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "start: stages[0]: ends before layer 2, where more than one tensor crosses; cut stages only where one "
                 "tensor crosses");
  }
}

}  // namespace isobar::allocators::local_search_test

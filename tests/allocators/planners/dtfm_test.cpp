#include "allocators/planners/dtfm.hpp"

#include "allocators/planners/dtfm_costs.hpp"
#include "allocators/registry.hpp"
#include "core/check/dtfm_cost.hpp"
#include "core/model/layer_graph.hpp"
#include "tests/support/dtfm_cases.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace isobar::allocators::dtfm_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::HasSubstr;

SearchLimits shape(std::optional<std::uint64_t> pipeline, std::optional<std::uint64_t> replicas)
{
  SearchLimits limits;
  limits.grid = {pipeline, replicas};
  return limits;
}

/// Devices 0 to 7, 8 to 15, … and the shortest path through these stages.
struct InFileOrder {
  explicit InFileOrder(const DtFmCosts& costs)
  {
    for (std::size_t i = 0; i < 64; ++i) {
      if (i % 8 == 0) groups.emplace_back();
      groups.back().push_back(i);
    }
    for (const auto& group : groups) sync = std::max(sync, costs.sync_of(group));
    std::vector<std::size_t> order(8);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<std::vector<double>> hop(8, std::vector<double>(8, 0));
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t j = 0; j < 8; ++j) hop[i][j] = i == j ? 0 : slowest_pass(costs, groups[i], groups[j]);
    }
    do {
      double length = 0;
      for (std::size_t i = 1; i < 8; ++i) length += hop[order[i - 1]][order[i]];
      passes = std::min(passes, length);
    } while (std::next_permutation(order.begin(), order.end()));
  }

  DtFmGroups groups;
  double sync = 0;
  double passes = std::numeric_limits<double>::infinity();
};

TEST(DtFmCosts, AreThePublishedOnesOfAllCasesInTheOrderOfTheFile)
{
  struct Published {
    double sync, passes, cost;
  };
  constexpr Published published[] = {{0.091, 8.444786, 16.980572}, {7.28, 21.111965, 49.503930},
                                     {1.834, 7.907058, 17.648117}, {4.62, 17.310304, 39.240608},
                                     {4.62, 27.408433, 59.436865}, {9.8, 26.739956, 63.279913}};
  const Workload workload = dtfm_workload();
  const ChainView view = chain_view(workload);
  for (std::size_t number = 0; number < 6; ++number) {
    const Cluster devices = dtfm_case(number);
    const HybridProblem problem{workload, view, devices, dtfm_goal(), shape(8, 8)};
    const InFileOrder stages(dtfm_costs(problem, {8, 8}));
    EXPECT_NEAR(stages.sync, published[number].sync, 1e-6) << number;
    EXPECT_NEAR(stages.passes, published[number].passes, 1e-6) << number;
    EXPECT_NEAR(stages.sync + 2 * stages.passes, published[number].cost, 2e-6) << number;
  }
}

TEST(DtFmCosts, AgreeWithTheCheckers)
{
  std::mt19937_64 random(7);
  for (int i = 0; i < 50; ++i) {
    const SmallDtFmProblem small(random);
    Plan plan = allocate("dtfm", small.workload, small.devices, small.goal, shape(small.stages, small.replicas));
    ASSERT_FALSE(plan.stages.empty()) << plan.reason;
    EXPECT_NEAR(plan.objective->value, dtfm_cost(plan, small.workload, small.devices), 1e-12 * plan.objective->value);
  }
}

TEST(DtFmCosts, PairReplicasSoThatTheSlowestPassIsFastest)
{
  // d0 is near d3 only, d1 near both.
  std::vector<Path> paths(16, {Seconds(9), BytesPerSecond(1e9)});
  for (const std::size_t near : {0 * 4 + 3, 1 * 4 + 2, 1 * 4 + 3}) paths[near].latency = Seconds(1);
  Cluster devices = cluster({1, 1, 1, 1});
  devices.network = std::make_shared<MatrixNetwork>(4, std::move(paths));
  const DtFmCosts costs(devices, {2, 2}, Bytes(0), Bytes(0));
  std::vector<std::size_t> partners;
  EXPECT_EQ(slowest_pass(costs, {0, 1}, {3, 2}, &partners), 1);
  EXPECT_THAT(partners, testing::ElementsAre(3, 2));
  EXPECT_EQ(slowest_pass(costs, {0, 1}, {2, 3}, &partners), 1);
  EXPECT_THAT(partners, testing::ElementsAre(3, 2));
  EXPECT_EQ(slowest_pass(costs, {2, 3}, {0, 1}), 9);
}

TEST(DtFm, FindsTheOptimumOfTheDatacenterAndOfTwoUniversities)
{
  const Workload workload = dtfm_workload();
  for (const auto& [number, optimum] : {std::pair(0, 3.439799), std::pair(2, 16.086840)}) {
    const Cluster devices = dtfm_case(static_cast<std::size_t>(number));
    const Plan plan = allocate("dtfm", workload, devices, dtfm_goal(), shape(8, 8));
    EXPECT_NEAR(plan.objective->value, optimum, 1e-6) << number;
    EXPECT_EQ(plan.stages.size(), 8U);
    EXPECT_EQ(plan.stages.front().replicas.size(), 8U);
    EXPECT_EQ(plan.stages.front().replicas.front().microbatches, 20U);
  }
}

TEST(DtFm, MakesTheSamePlanForASeedAndOthersForOtherSeeds)
{
  const Workload workload = dtfm_workload();
  const Cluster devices = dtfm_case(4);
  const auto plan_of = [&](std::uint64_t seed) {
    auto limits = shape(8, 8);
    limits.budget = 50;
    limits.seed = seed;
    return lasting_plan_to_json(allocate("dtfm", workload, devices, dtfm_goal(), limits));
  };
  EXPECT_EQ(plan_of(1), plan_of(1));
  EXPECT_NE(plan_of(1), plan_of(2));
}

TEST(DtFm, CostsLessWithMoreTrials)
{
  const Workload workload = dtfm_workload();
  const Cluster devices = dtfm_case(3);
  auto limits = shape(8, 8);
  limits.budget = 0;
  const Plan random = allocate("dtfm", workload, devices, dtfm_goal(), limits);
  limits.budget = 1000;
  EXPECT_LT(*allocate("dtfm", workload, devices, dtfm_goal(), limits).objective, *random.objective);
}

TEST(DtFm, TriesAllShapesThatUseAllDevicesUnlessOneIsGiven)
{
  const Workload workload = chain(std::vector<double>(4, 1.0), 1, 0, 1);
  const Cluster devices = cluster(std::vector<double>(6, 1.0), {Seconds(1), BytesPerSecond(1)});
  const ChainView view = chain_view(workload);
  const auto shapes = [&](std::optional<std::uint64_t> pipeline, std::optional<std::uint64_t> replicas) {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    const HybridProblem problem{workload, view, devices, dtfm_goal(12), shape(pipeline, replicas)};
    for (const auto& [stages, of_stage] : dtfm_shapes(problem)) found.emplace_back(stages, of_stage);
    return found;
  };
  using Shapes = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(shapes({}, {}), (Shapes{{1, 6}, {2, 3}, {3, 2}}));  // six stages need six layers
  EXPECT_EQ(shapes(4, {}), (Shapes{{4, 1}}));
  EXPECT_EQ(shapes({}, 4), (Shapes{{1, 4}}));
  EXPECT_EQ(shapes(2, 2), (Shapes{{2, 2}}));
  EXPECT_EQ(shapes(2, 4), Shapes());
  EXPECT_EQ(shapes({}, 5), Shapes());  // do not divide 12 micro-batches
}

TEST(DtFm, SaysWhyItHasNoPlan)
{
  const Workload workload = chain(std::vector<double>(4, 1.0), 1, 0, 1);
  const Cluster devices = cluster(std::vector<double>(6, 1.0), {Seconds(1), BytesPerSecond(1)});
  const Plan plan = allocate("dtfm", workload, devices, dtfm_goal(12), shape(2, 5));
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(plan.reason,
            "there is no placement in 2 stages with 5 replicas of 4 layers on 6 devices whose replicas divide 12 "
            "micro-batches; change --pipeline, --replicas or --microbatches");
}

TEST(DtFm, PlansForTheStepToo)
{
  const Workload workload = dtfm_workload();
  const Cluster devices = dtfm_case(0);
  Goal goal = Goal::with_defaults(Objective::Step);
  goal.microbatches = 160;
  auto limits = shape(8, 8);
  limits.budget = 100;
  const Plan plan = allocate("dtfm", workload, devices, goal, limits);
  EXPECT_EQ(plan.objective, plan.predicted->step_time);
  EXPECT_EQ(plan.certificate.kind, CertificateKind::Load);
}

TEST(ObjectiveDtFm, IsRefusedForAllocatorsOfChainsAndFormulasOfThem)
{
  const Workload workload = chain(std::vector<double>(4, 1.0), 1, 0, 1);
  const Cluster devices = cluster(std::vector<double>(4, 1.0), {Seconds(1), BytesPerSecond(1)});
  EXPECT_EQ(message_of([&] { allocate("chain-dp", workload, devices, dtfm_goal(), {}); }),
            "InputError objective: dtfm is a cost of pipelines with replicas, which chain-dp does not place; use "
            "allocator amp or dtfm or dtfm-exact or grid or hybrid or metis");
  Goal goal = Goal::with_defaults(Objective::Bottleneck);
  EXPECT_THAT(message_of([&] { allocate("dtfm", workload, devices, goal, {}); }),
              HasSubstr("bottleneck is a formula of one chain; the plans of dtfm are for objective step"));
}

TEST(ObjectiveDtFm, PricesTheGridsThatHaveItsShape)
{
  const Workload workload = dtfm_workload();
  const Cluster devices = dtfm_case(5);
  const Plan plan = allocate("grid", workload, devices, dtfm_goal(), shape(8, 8));
  EXPECT_NEAR(plan.objective->value, 63.279913, 1e-6);
  EXPECT_EQ(plan.outcome, Outcome::Optimal);  // the least sync and the least passes are all that there are
}

}  // namespace
}  // namespace isobar::allocators::dtfm_test

#include "allocators/chain/chain_dp.hpp"

#include "allocators/chain/memory_reach.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace isobar::allocators::chain_dp_test {

namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::HasSubstr;
using testing::Not;

/// Rounds an instance to few distinct values, so that ties are frequent.
void round_to_ties(std::mt19937_64& random, Workload& workload, Cluster& cluster)
{
  for (auto& layer : workload.layers) {
    layer.forward = Flops(static_cast<double>(random() % 3));
    layer.backward = layer.forward * 2;
    layer.output = Bytes(static_cast<double>(random() % 3));
    layer.gradient = layer.output;
    layer.activations = Bytes(static_cast<double>(random() % 3));
  }
  std::vector<Path> paths;
  const std::size_t endpoints = cluster.devices.size() + 1;
  for (std::size_t i = 0; i < endpoints * endpoints; ++i) {
    paths.push_back(
        {Seconds(static_cast<double>(random() % 2)), BytesPerSecond(1 + static_cast<double>(random() % 2))});
  }
  cluster.network = std::make_shared<MatrixNetwork>(endpoints, std::move(paths));
  for (auto& device : cluster.devices) device.speed = FlopsPerSecond(1 + static_cast<double>(random() % 2));
}

std::string name_of_goal(const Goal& goal)
{
  return std::string(name_of(goal.objective)) + " " + std::string(name_of(goal.communication)) + " " +
         text_of(goal.schedule) + " M=" + std::to_string(goal.microbatches);
}

}  // namespace

TEST(ChainDp, FindsTheBestPlanOfItsOrderForEveryGoal)
{
  std::mt19937_64 random(20240607);
  std::size_t feasible = 0;
  std::size_t infeasible = 0;
  std::size_t steps = 0;
  std::size_t good_steps = 0;
  constexpr int instances = 1500;
  for (int instance = 0; instance < instances; ++instance) {
    const bool is_large = instance % 300 == 0;
    const std::size_t devices = is_large ? 6 : 1 + random() % 4;
    const std::size_t layers = is_large ? 10 : 1 + random() % 7;
    Workload workload = random_chain(random, layers);
    // From ample memory to hardly enough.
    const double memory = instance % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    Cluster cluster = random_cluster(random, devices, memory);
    if (instance % 4 == 0) round_to_ties(random, workload, cluster);
    const CostModel cost(workload, cluster);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, false);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const Placement placement = place_by_chain_dp({cost, goals[i], {}});
      if (std::isinf(least[i])) {
        ++infeasible;
        ASSERT_EQ(placement.outcome, Outcome::Infeasible) << "instance " << instance << ": " << name_of_goal(goals[i]);
        EXPECT_NE(placement.reason, "");
        EXPECT_TRUE(placement.stages.empty());
        continue;
      }
      ++feasible;
      ASSERT_EQ(placement.outcome, Outcome::Feasible) << "instance " << instance << ": " << name_of_goal(goals[i]);
      ASSERT_TRUE(memory_holds(cost, placement.stages, goals[i]))
          << "instance " << instance << ": " << name_of_goal(goals[i]);
      const double found = cost.evaluate(placement.stages, goals[i]).objective.value;
      if (goals[i].objective == Objective::Step) {  // a heuristic
        ASSERT_GE(found, least[i] * (1 - 1e-12)) << "instance " << instance << ": " << name_of_goal(goals[i]);
        ++steps;
        good_steps += found <= 1.1 * least[i] ? 1U : 0U;
        continue;
      }
      ASSERT_NEAR(found, least[i], 1e-12 * least[i]) << "instance " << instance << ": " << name_of_goal(goals[i]);
    }
  }
  EXPECT_GT(static_cast<double>(good_steps), 0.75 * static_cast<double>(steps));
  // Both outcomes are frequent.
  EXPECT_GT(feasible, 10'000U);
  EXPECT_GT(infeasible, 1'000U);
}

TEST(ChainDp, NamesTheLayerThatNoDeviceHolds)
{
  Workload workload = chain({1, 1, 1}, 1 << 20);
  workload.layers[1].parameters = 1 << 29;  // 4 GiB with its gradient
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 3 * 0x1p30);
  const CostModel cost(workload, platform);
  const Placement placement = place_by_chain_dp({cost, Goal{}, {}});
  EXPECT_EQ(placement.outcome, Outcome::Infeasible);
  EXPECT_EQ(placement.reason,
            "layer 1 needs 4.00 GiB; the largest device, d0, has 3.00 GiB; 1.00 GiB more memory there would be "
            "enough");
}

TEST(ChainDp, NamesTheOverfullDeviceAndHowMuchMoreMemoryIsEnough)
{
  const Workload workload = chain({1, 1, 1, 1, 1}, 1 << 27);  // 1 GiB each with its gradient
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 2.5 * 0x1p30);
  const CostModel cost(workload, platform);
  const Placement placement = place_by_chain_dp({cost, Goal::with_defaults(Objective::Sequential), {}});
  EXPECT_EQ(placement.outcome, Outcome::Infeasible);
  EXPECT_EQ(placement.reason,
            "device d0: layers 0..2 need 3.00 GiB and it has 2.50 GiB when the devices after it are full; 20 % more "
            "memory on every device would be enough");
  Cluster larger = platform;
  for (auto& device : larger.devices) device.memory *= 1.2;
  const CostModel larger_cost(workload, larger);
  EXPECT_EQ(place_by_chain_dp({larger_cost, Goal::with_defaults(Objective::Sequential), {}}).outcome,
            Outcome::Feasible);
}

TEST(ChainDp, SuggestsRecomputationWhereItIsEnough)
{
  const Workload workload = chain({1, 1, 1, 1}, 0, 0x1p30, 0x1p20);  // 1 GiB of activations each
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 1.5 * 0x1p30);
  const auto placed = [&](const Workload& taken) {
    const CostModel cost(taken, platform);
    return place_by_chain_dp({cost, Goal::with_defaults(Objective::Sequential), {}});
  };
  const Placement placement = placed(workload);
  EXPECT_EQ(placement.outcome, Outcome::Infeasible);
  EXPECT_THAT(
      placement.reason,
      HasSubstr("more memory on every device would be enough; recomputation would be enough (--recompute all)"));
  EXPECT_EQ(placed(with_recomputation(workload, {0, 1, 2, 3})).outcome, Outcome::Feasible);

  const Placement of_parameters = placed(chain({1, 1, 1, 1}, 1 << 27));
  EXPECT_EQ(of_parameters.outcome, Outcome::Infeasible);
  EXPECT_THAT(of_parameters.reason, Not(HasSubstr("recompute")));
}

TEST(ChainDp, CountsMicroBatchesInFlightUnder1f1b)
{
  // Activations of 1 byte a layer; the first of two stages keeps two micro-batches, so it holds at most two layers.
  const Workload workload = chain({1, 1, 1, 1, 1, 1}, 0, 1, 0);
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 4);
  const CostModel cost(workload, platform);
  const Goal goal{Objective::Bottleneck, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), 8};
  const Placement placement = place_by_chain_dp({cost, goal, {}});
  ASSERT_EQ(placement.stages.size(), 2U);
  EXPECT_EQ(placement.stages[0].last_layer, 1U);
}

TEST(ChainDp, LeavesOutADeviceThatIsNotWorthItsTransfer)
{
  const Workload workload = chain({10, 10, 10, 10}, 0, 0, 1);
  const Cluster platform = cluster({1, 1}, {Seconds(1000), BytesPerSecond(1e9)});
  const CostModel cost(workload, platform);
  const Placement placement = place_by_chain_dp({cost, Goal{}, {}});
  EXPECT_EQ(placement.stages.size(), 1U);
}

TEST(ChainDp, ReturnsTheBestPlanSoFarWhenItsBudgetIsSpent)
{
  const Workload workload = sky_bert(24);
  const Cluster cluster = sky_cluster(15);
  const CostModel cost(workload, cluster);
  const Goal goal = Goal::with_defaults(Objective::Pipeline);
  SearchLimits limits;
  limits.budget = 0;
  const Placement none = place_by_chain_dp({cost, goal, limits});
  EXPECT_EQ(none.outcome, Outcome::TimedOut);
  EXPECT_EQ(none.reason, "no plan was found within the limits; raise --time-limit or --budget");
  double objective = std::numeric_limits<double>::infinity();
  for (const std::uint64_t budget : {1U, 5U, 40U}) {
    limits.budget = budget;
    const Placement placement = place_by_chain_dp({cost, goal, limits});
    EXPECT_EQ(placement.outcome, Outcome::TimedOut);
    ASSERT_FALSE(placement.stages.empty());
    const double found = cost.evaluate(placement.stages, goal).objective.value;
    EXPECT_LE(found, objective);
    objective = found;
  }
  EXPECT_EQ(place_by_chain_dp({cost, goal, {}}).outcome, Outcome::Feasible);
}

TEST(ChainDp, EndsItsGridForTheStepWithinAHundredPasses)
{
  const Workload workload = sky_bert(24);
  const Cluster cluster = sky_cluster(15);
  const CostModel cost(workload, cluster);
  SearchLimits limits;
  limits.budget = 100;
  limits.candidates = 5;
  const Placement placement = place_by_chain_dp({cost, Goal{}, limits});
  EXPECT_EQ(placement.outcome, Outcome::Feasible);
  EXPECT_EQ(placement.alternatives.size(), 4U);
  double before = cost.evaluate(placement.stages, Goal{}).objective.value;
  for (const auto& stages : placement.alternatives) {
    const double step = cost.evaluate(stages, Goal{}).objective.value;
    EXPECT_GE(step, before);
    EXPECT_TRUE(memory_holds(cost, stages, Goal{}));
    before = step;
  }
}

TEST(ChainDp, StopsAtItsTimeLimit)
{
  const Workload workload = sky_bert(160);
  const Cluster cluster = sky_cluster(63);
  const CostModel cost(workload, cluster);
  SearchLimits limits;
  limits.time_limit = Seconds(0.001);  // a small part of what the search takes
  const Placement placement = place_by_chain_dp({cost, Goal{}, limits});
  EXPECT_EQ(placement.outcome, Outcome::TimedOut);
}

/// Known optimum of the published heterogeneity: exact min-max of 4 nodes x 10 encoders in multiply-adds x factor.
TEST(ChainDp, IsAtMostTheBestOfPublishedAllocators)
{
  const Workload workload = sky_bert(10);
  const Cluster cluster = sky_cluster(3);
  const CostModel cost(workload, cluster);
  Goal goal = Goal::with_defaults(Objective::Bottleneck);
  goal.communication = Communication::None;
  const Placement placement = place_by_chain_dp({cost, goal, {}});
  const double found = cost.evaluate(placement.stages, goal).objective.value * 9.3e12 / 6;
  EXPECT_GE(found, 254.26786e9 * (1 - 1e-6));  // no order is better
  EXPECT_LE(found, 276.859645e9);              // even and sky-dynamic
}

TEST(MemoryReach, AgreesWithTheCostModel)
{
  std::mt19937_64 random(5);
  for (int instance = 0; instance < 300; ++instance) {
    const std::size_t layers = 1 + random() % 8;
    const std::size_t devices = 1 + random() % 4;
    const Workload workload = random_chain(random, layers);
    const Cluster cluster = random_cluster(random, devices, 60 * std::pow(0.5, static_cast<double>(random() % 5)));
    const CostModel cost(workload, cluster);
    for (const Goal& goal : all_goals(1 + random() % 4)) {
      const MemoryReach reach(cost, goal, 1, [] {});
      for (std::size_t stages_after = 0; stages_after < std::min(devices, layers); ++stages_after) {
        const std::size_t level = std::min(stages_after, reach.levels() - 1);
        for (std::size_t i = 0; i < devices; ++i) {
          for (std::size_t first = 0; first < layers; ++first) {
            std::size_t furthest = first;
            for (std::size_t end = first + 1; end <= layers; ++end) {
              const auto in_flight =
                  microbatches_in_flight(require_chain_schedule(goal.schedule), stages_after, goal.microbatches);
              const bool fits = cost.memory(first, end - 1, in_flight) <= cluster.devices[i].memory;
              ASSERT_EQ(reach.fits(level, i, first, end), fits);
              if (fits) furthest = end;
            }
            ASSERT_EQ(reach.furthest(level, i, first), furthest);
          }
        }
      }
    }
  }
}

}  // namespace isobar::allocators::chain_dp_test

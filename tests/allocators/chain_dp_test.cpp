#include "allocators/chain_dp.hpp"

#include "allocators/memory_reach.hpp"
#include "tests/allocators/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace isobar::allocators {

namespace {

using namespace testing_support;  // NOLINT: a test file

/// Few distinct values, so that ties abound.
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
         std::string(name_of(goal.schedule)) + " M=" + std::to_string(goal.microbatches);
}

}  // namespace

TEST(ChainDp, FindsTheBestPlanOfItsOrderForEveryGoal)
{
  std::mt19937_64 random(20240607);
  std::size_t feasible = 0;
  std::size_t infeasible = 0;
  constexpr int instances = 1500;
  for (int instance = 0; instance < instances; ++instance) {
    const bool is_large = instance % 300 == 0;
    const std::size_t devices = is_large ? 6 : 1 + random() % 4;
    const std::size_t layers = is_large ? 10 : 1 + random() % 7;
    Workload workload = random_chain(random, layers);
    // From plenty of memory to hardly enough.
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
      ASSERT_NEAR(found, least[i], 1e-12 * least[i]) << "instance " << instance << ": " << name_of_goal(goals[i]);
    }
  }
  // Neither answer is rare.
  EXPECT_GT(feasible, 10'000U);
  EXPECT_GT(infeasible, 1'000U);
}

}  // namespace isobar::allocators

#include "allocators/exact.hpp"

#include "allocators/bounds.hpp"
#include "core/certificate_checker.hpp"
#include "tests/allocators/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace isobar::allocators {

namespace {

using namespace testing_support;  // NOLINT: a test file

std::string name_of_goal(const Goal& goal)
{
  return std::string(name_of(goal.objective)) + " " + std::string(name_of(goal.communication)) + " " +
         std::string(name_of(goal.schedule)) + " M=" + std::to_string(goal.microbatches);
}

/// Devices on sites: paths within a site are alike, and so are those between two sites.
void gather_on_sites(std::mt19937_64& random, Cluster& cluster, std::size_t sites)
{
  std::uniform_real_distribution<double> unit(0, 1);
  const std::size_t endpoints = cluster.devices.size() + 1;
  std::vector<std::size_t> site(endpoints);
  for (auto& each : site) each = random() % sites;
  std::vector<Path> between(sites * sites);
  for (auto& path : between) path = {Seconds(0.3 * unit(random)), BytesPerSecond(0.5 + 4 * unit(random))};
  std::vector<Path> paths;
  for (std::size_t i = 0; i < endpoints * endpoints; ++i) {
    paths.push_back(between[site[i / endpoints] * sites + site[i % endpoints]]);
  }
  cluster.network = std::make_shared<MatrixNetwork>(endpoints, std::move(paths));
  for (auto& device : cluster.devices) device.speed = FlopsPerSecond(1 + static_cast<double>(random() % 2));
}

/// A chain that repeats a period of random layers.
Workload repeating_chain(std::mt19937_64& random, std::size_t layers, std::size_t period)
{
  Workload workload = random_chain(random, layers);
  for (std::size_t i = 1 + period; i + 1 < layers; ++i) {
    const std::string name = workload.layers[i].name;
    const auto inputs = workload.layers[i].inputs;
    workload.layers[i] = workload.layers[i - period];
    workload.layers[i].name = name;
    workload.layers[i].inputs = inputs;
  }
  return workload;
}

}  // namespace

TEST(Exact, EqualsBruteForceOverAllOrdersSubsetsAndSplitsForEveryGoal)
{
  std::mt19937_64 random(20261121);
  std::size_t feasible = 0;
  std::size_t infeasible = 0;
  const int instances = std::getenv("ISOBAR_INSTANCES") ? atoi(std::getenv("ISOBAR_INSTANCES")) : 300;
  for (int instance = 0; instance < instances; ++instance) {
    const bool is_large = instance % 100 == 99;
    const std::size_t devices = is_large ? 5 + random() % 3 : 1 + random() % 4;
    const std::size_t layers = is_large ? 7 + random() % 3 : 1 + random() % (instance % 50 == 0 ? 14 : 8);
    const Workload workload =
        instance % 3 == 1 ? repeating_chain(random, layers, 1 + random() % 3) : random_chain(random, layers);
    const double memory = instance % 4 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    Cluster cluster = random_cluster(random, devices, memory);
    if (instance % 3 == 2) gather_on_sites(random, cluster, 1 + random() % 3);
    if (std::getenv("ONLY") && instance != atoi(std::getenv("ONLY"))) {
      (void)all_goals(1 + random() % 5);
      continue;
    }
    const CostModel cost(workload, cluster);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const std::string where = "instance " + std::to_string(instance) + ": " + name_of_goal(goals[i]);
      const Placement placement = place_exactly({cost, goals[i], {}});
      if (std::isinf(least[i])) {
        ++infeasible;
        ASSERT_EQ(placement.outcome, Outcome::Infeasible) << where;
        EXPECT_NE(placement.reason, "");
        continue;
      }
      ++feasible;
      ASSERT_FALSE(placement.stages.empty()) << where;
      ASSERT_TRUE(memory_holds(cost, placement.stages, goals[i])) << where;
      const double found = cost.evaluate(placement.stages, goals[i]).objective.value;
      ASSERT_NEAR(found, least[i], 1e-9 * least[i]) << where;
      Plan plan = plan_of(placement.stages, cost, goals[i]);
      const Bound fractional = objective_bound(cost, goals[i]);
      plan.objective_bound = placement.objective_bound.value_or(fractional.value);
      plan.certificate = placement.objective_bound ? placement.certificate : fractional.certificate;
      ASSERT_GE(plan.objective_bound->value, least[i] * (1 - 1e-9)) << where;
      ASSERT_LE(plan.objective_bound->value, least[i] * (1 + 1e-9)) << where;
      const auto faults = faults_of_certificate(plan, workload, cluster);
      ASSERT_TRUE(faults.empty()) << where << ": " << name_of(plan.certificate.kind) << ": " << faults.front();
    }
  }
  EXPECT_GT(feasible, static_cast<std::size_t>(instances));
  EXPECT_GT(infeasible, static_cast<std::size_t>(instances) / 10);
}

}  // namespace isobar::allocators

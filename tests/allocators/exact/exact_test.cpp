#include "allocators/exact/exact.hpp"
#include "allocators/registry.hpp"

#include "allocators/bounds/bounds.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace isobar::allocators::exact_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

// Every placement of some instances is tried, which takes ten times as long under the sanitizers.
#if defined(__SANITIZE_ADDRESS__)
constexpr int enough = 160;
#else
constexpr int enough = 1'000;
#endif
constexpr int few = enough / 25;

std::string name_of_goal(const Goal& goal)
{
  return std::string(name_of(goal.objective)) + " " + std::string(name_of(goal.communication)) + " " +
         text_of(goal.schedule) + " M=" + std::to_string(goal.microbatches);
}

/// Puts the devices on sites: paths within a site are equal, and so are those between two sites.
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
  constexpr int instances = enough;
  for (int instance = 0; instance < instances; ++instance) {
    const bool is_large = instance % 100 == 99;
    const std::size_t devices = is_large ? 5 + random() % 3 : 1 + random() % 4;
    const std::size_t layers = is_large ? 7 + random() % 3 : 1 + random() % (instance % 50 == 0 ? 14 : 8);
    Workload workload =
        instance % 3 == 1 ? repeating_chain(random, layers, 1 + random() % 3) : random_chain(random, layers);
    const double memory = instance % 4 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    Cluster cluster = random_cluster(random, devices, memory);
    if (instance % 3 == 2) gather_on_sites(random, cluster, 1 + random() % 3);
    if (instance % 4 > 1) workload = with_own_work(random, std::move(workload), cluster);
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
      ASSERT_FALSE(placement.stages.empty()) << where << ": " << name_of(placement.outcome) << ", " << placement.reason;
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

TEST(Exact, BoundsAreBelowTheOptimumAndTheOptimumIsBelowEveryAllocator)
{
  std::mt19937_64 random(7);
  for (int instance = 0; instance < few; ++instance) {
    Workload workload = random_chain(random, 2 + random() % 10);
    Cluster cluster = random_cluster(random, 2 + random() % 4, instance % 2 == 0 ? 1e9 : 40);
    if (instance % 3 > 0) workload = with_own_work(random, std::move(workload), cluster);
    for (const auto& goal : all_goals(1 + random() % 4)) {
      const Plan best = allocate("exact", workload, cluster, goal, {});
      if (best.stages.empty()) continue;
      EXPECT_EQ(best.outcome, Outcome::Optimal) << name_of_goal(goal);
      for (const auto& allocator : allocators()) {
        if (allocator.name == "sky-optimal" || allocator.name == "exact" || allocator.propose != nullptr) continue;
        SearchLimits limits;
        limits.budget = 300;
        const Plan plan = allocate(std::string(allocator.name), workload, cluster, goal, limits);
        if (plan.stages.empty()) continue;
        EXPECT_GE(plan.objective->value, best.objective->value * (1 - 1e-9)) << allocator.name << name_of_goal(goal);
        EXPECT_LE(plan.objective_bound->value, best.objective->value * (1 + 1e-9))
            << allocator.name << name_of_goal(goal);
        const auto faults = faults_of_certificate(plan, workload, cluster);
        EXPECT_TRUE(faults.empty()) << allocator.name << name_of_goal(goal) << faults.front();
      }
    }
  }
}

TEST(Exact, EqualsBruteForceAndBeatsEveryAllocatorWhereLayersRecompute)
{
  std::mt19937_64 random(17);
  std::size_t feasible = 0;
  std::size_t infeasible = 0;
  for (int instance = 0; instance < few; ++instance) {
    Workload chain = random_chain(random, 1 + random() % 7);
    Cluster cluster = random_cluster(random, 1 + random() % 3, 160 * std::pow(0.5, static_cast<double>(random() % 4)));
    if (instance % 2 == 0) chain = with_own_work(random, std::move(chain), cluster);
    const Workload workload = with_random_recomputation(random, std::move(chain));
    const CostModel cost(workload, cluster);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const std::string where = "instance " + std::to_string(instance) + ": " + name_of_goal(goals[i]);
      const Plan best = allocate("exact", workload, cluster, goals[i], {});
      EXPECT_EQ(best.recompute, workload.recompute);
      ++(best.stages.empty() ? infeasible : feasible);
      ASSERT_EQ(best.stages.empty(), std::isinf(least[i])) << where;
      if (best.stages.empty()) continue;
      ASSERT_NEAR(best.objective->value, least[i], 1e-9 * least[i]) << where;
      ASSERT_NEAR(best.objective_bound->value, least[i], 1e-9 * least[i]) << where;
      ASSERT_TRUE(faults_of_certificate(best, workload, cluster).empty()) << where;
      if (i % 9 != 0) continue;  // one goal of each objective for the others
      for (const auto& allocator : allocators()) {
        if (allocator.propose != nullptr) continue;  // its plans may be no chains
        SearchLimits limits;
        limits.budget = 100;
        const Plan plan = allocate(std::string(allocator.name), workload, cluster, goals[i], limits);
        if (plan.stages.empty()) continue;
        EXPECT_GE(plan.objective->value, least[i] * (1 - 1e-9)) << where << allocator.name;
      }
    }
  }
  EXPECT_GT(feasible, infeasible);
  EXPECT_GT(infeasible, 0u);
}

TEST(Exact, RenamingOrReorderingDevicesChangesNoOptimum)
{
  std::mt19937_64 random(11);
  for (int instance = 0; instance < few; ++instance) {
    const Workload workload = random_chain(random, 3 + random() % 8);
    Cluster cluster = random_cluster(random, 4, 60);
    cluster.data_server.reset();
    cluster.network = MatrixNetwork::uniform(5, {Seconds(0.1), BytesPerSecond(2)});
    Cluster other = cluster;
    std::shuffle(other.devices.begin(), other.devices.end(), random);
    for (auto& device : other.devices) device.name = "renamed-" + device.name;
    for (const auto& goal : all_goals(3)) {
      const Plan plan = allocate("exact", workload, cluster, goal, {});
      const Plan same = allocate("exact", workload, other, goal, {});
      ASSERT_EQ(plan.objective.has_value(), same.objective.has_value());
      if (plan.objective) {
        EXPECT_NEAR(plan.objective->value, same.objective->value, 1e-9 * plan.objective->value);
      }
    }
  }
}

TEST(Exact, ScalingSpeedsScalesAnObjectiveWithoutTransfers)
{
  std::mt19937_64 random(12);
  for (int instance = 0; instance < few; ++instance) {
    const Workload workload = random_chain(random, 3 + random() % 8);
    const Cluster cluster = random_cluster(random, 4, 60);
    Cluster faster = cluster;
    for (auto& device : faster.devices) device.speed *= 3;
    for (auto goal : all_goals(3)) {
      goal.communication = Communication::None;
      const Plan plan = allocate("exact", workload, cluster, goal, {});
      const Plan third = allocate("exact", workload, faster, goal, {});
      ASSERT_EQ(plan.objective.has_value(), third.objective.has_value());
      if (plan.objective) {
        EXPECT_NEAR(plan.objective->value, 3 * third.objective->value, 1e-8 * plan.objective->value);
      }
    }
  }
}

TEST(Exact, OneMoreDeviceOrMoreMemoryNeverHurts)
{
  std::mt19937_64 random(13);
  for (int instance = 0; instance < few; ++instance) {
    const Workload workload = random_chain(random, 3 + random() % 7);
    const Cluster more = random_cluster(random, 4, 40);
    Cluster less = more;
    less.data_server.reset();
    Cluster same = more;
    same.data_server.reset();
    less.devices.pop_back();
    Cluster roomier = same;
    for (auto& device : roomier.devices) device.memory *= 1.3;
    // A network numbers its paths by endpoints, so all three get a uniform one.
    for (Cluster* cluster : {&less, &same, &roomier}) {
      cluster->network = MatrixNetwork::uniform(cluster->devices.size() + 1, {Seconds(0.1), BytesPerSecond(2)});
    }
    for (const auto& goal : all_goals(3)) {
      const Plan with = allocate("exact", workload, same, goal, {});
      const Plan without = allocate("exact", workload, less, goal, {});
      const Plan with_memory = allocate("exact", workload, roomier, goal, {});
      if (without.objective) {
        ASSERT_TRUE(with.objective.has_value());
        EXPECT_LE(with.objective->value, without.objective->value * (1 + 1e-9)) << name_of_goal(goal);
      }
      if (with.objective) {
        ASSERT_TRUE(with_memory.objective.has_value());
        EXPECT_LE(with_memory.objective->value, with.objective->value * (1 + 1e-9)) << name_of_goal(goal);
      }
    }
  }
}

TEST(Exact, ProvesTheBottleneckOfSkysClusters)
{
  for (const auto& [devices, encoders] : {std::pair{3, 10}, {15, 24}, {31, 80}, {63, 160}}) {
    const Workload workload = sky_bert(static_cast<std::uint64_t>(encoders));
    const Cluster cluster = sky_cluster(static_cast<std::size_t>(devices));
    const Goal goal{Objective::Bottleneck, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), 8};
    const Plan plan = allocate("exact", workload, cluster, goal, {});
    EXPECT_EQ(plan.outcome, Outcome::Optimal) << devices;
    EXPECT_LE(plan.gap_fraction().value(), 1e-9) << devices;
    EXPECT_TRUE(faults_of_certificate(plan, workload, cluster).empty()) << devices;
  }
}

TEST(Exact, SaysWhatIsEnoughWhenNoOrderHoldsTheChain)
{
  const Workload workload = chain({1, 1, 1}, 1 << 27);  // 1 GiB each with its gradient
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 1.5 * 0x1p30);
  const Plan plan = allocate("exact", workload, platform, Goal{}, {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_NE(plan.reason.find("no choice and order of devices holds the chain"), std::string::npos) << plan.reason;
  EXPECT_NE(plan.reason.find("% more memory on every device would be enough"), std::string::npos) << plan.reason;
  EXPECT_EQ(plan.reason.find("recompute"), std::string::npos) << plan.reason;

  const Workload of_activations = chain({1, 1, 1, 1}, 0, 0x1p30, 0x1p20);
  const Plan recomputable = allocate("exact", of_activations, platform, Goal{}, {});
  EXPECT_EQ(recomputable.outcome, Outcome::Infeasible);
  EXPECT_NE(recomputable.reason.find("; recomputation would be enough (--recompute all)"), std::string::npos)
      << recomputable.reason;
}

TEST(Exact, GivesTheSameAnswerForTheSameBudget)
{
  const Workload workload = sky_bert(24);
  const Cluster cluster = sky_cluster(15);
  SearchLimits limits;
  limits.budget = 12;
  const CostModel cost(workload, cluster);
  const Placement one = place_exactly({cost, Goal{}, limits});
  const Placement two = place_exactly({cost, Goal{}, limits});
  EXPECT_EQ(cost.evaluate(one.stages, Goal{}).objective.value, cost.evaluate(two.stages, Goal{}).objective.value);
  EXPECT_EQ(one.objective_bound->value, two.objective_bound->value);
}

}  // namespace isobar::allocators::exact_test

#include "allocators/exact/exact_step.hpp"
#include "allocators/registry.hpp"

#include "allocators/bounds/bounds.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace isobar::allocators::exact_step_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

// Every placement of each instance is played, which takes ten times as long under the sanitizers.
#if defined(__SANITIZE_ADDRESS__)
constexpr int enough = 200;
#else
constexpr int enough = 2'000;
#endif

/// Up to 5 devices and 9 layers, mostly fewer; every third instance on sites, every third with little memory.
struct Instance {
  Instance(std::mt19937_64& random, int number)
  {
    const bool is_large = number % 200 == 199;
    const std::size_t devices = is_large ? 5 : 1 + random() % (number % 20 == 0 ? 4 : 3);
    const std::size_t layers = is_large ? 9 : 1 + random() % (number % 20 == 0 ? 7 : 5);
    workload = random_chain(random, layers);
    const double memory = number % 3 != 0 ? 1e9 : 80 * std::pow(0.5, static_cast<double>(random() % 3));
    if (number % 3 == 1) {
      cluster = random_sites(random, 2, (devices + 1) / 2, memory);
    } else {
      cluster = random_cluster(random, devices, memory);
    }
    microbatches = 1 + random() % 10;
  }

  Workload workload;
  Cluster cluster;
  std::uint64_t microbatches = 1;
};

void finds_and_proves_the_least_step(ChainSchedule schedule)
{
  std::mt19937_64 random(20261201);
  std::size_t searched = 0;
  std::size_t infeasible = 0;
  for (int number = 0; number < enough; ++number) {
    const Instance instance(random, number);
    const CostModel cost(instance.workload, instance.cluster);
    const auto communication = number % 4 == 3 ? Communication::None : Communication::Played;
    const Goal goal{Objective::Step, communication, choice_of(schedule), instance.microbatches};
    const double least = least_objectives(cost, {goal}, true).front();
    const Bound fractional = objective_bound(cost, goal);
    const Placement placement = place_step_exactly({cost, goal, {}});
    if (std::isinf(least)) {
      ++infeasible;
      ASSERT_EQ(placement.outcome, Outcome::Infeasible) << number;
      ASSERT_NE(placement.reason, "");
      continue;
    }
    ASSERT_LE(fractional.value.value, least * (1 + 1e-9)) << number;
    ASSERT_TRUE(memory_holds(cost, placement.stages, goal)) << number;
    ASSERT_NEAR(cost.evaluate(placement.stages, goal).objective.value, least, 1e-9 * least) << number;
    Plan plan = plan_of(placement.stages, cost, goal);
    plan.objective_bound = placement.objective_bound;
    plan.certificate = placement.certificate;
    ASSERT_NEAR(plan.objective_bound->value, least, 1e-9 * least) << number;
    const auto faults = faults_of_certificate(plan, instance.workload, instance.cluster);
    ASSERT_TRUE(faults.empty()) << number << ": " << faults.front();
    if (plan.certificate.kind != CertificateKind::Search) continue;
    ++searched;
    plan.objective_bound = Seconds(least * 1.001);
    ASSERT_FALSE(faults_of_certificate(plan, instance.workload, instance.cluster).empty()) << number;
  }
  EXPECT_GT(searched, static_cast<std::size_t>(enough) / 4);
  EXPECT_GT(infeasible, static_cast<std::size_t>(enough) / 50);
}

}  // namespace

TEST(ExactStep, IsTheLeastOfAllOrdersSubsetsAndSplitsUnderOneForwardOneBackward)
{
  finds_and_proves_the_least_step(ChainSchedule::OneForwardOneBackward);
}

TEST(ExactStep, IsTheLeastOfAllOrdersSubsetsAndSplitsUnderGPipe)
{
  finds_and_proves_the_least_step(ChainSchedule::GPipe);
}

TEST(ExactStep, IsTheLeastOfAllOrdersSubsetsAndSplitsUnderSequential)
{
  finds_and_proves_the_least_step(ChainSchedule::Sequential);
}

TEST(ExactStep, ScalesWithTheTimesOfComputeAndTransfers)
{
  std::mt19937_64 random(14);
  for (int number = 0; number < 60; ++number) {
    const Instance instance(random, number);
    Cluster slower = instance.cluster;
    for (auto& device : slower.devices) device.speed *= 0.25;
    const std::size_t endpoints = slower.devices.size() + 1;
    std::vector<Path> paths;
    for (std::size_t i = 0; i < endpoints * endpoints; ++i) {
      const std::size_t from = i / endpoints;
      const std::size_t to = i % endpoints;
      const Path path = from == to ? Path{} : instance.cluster.path(from, to);
      paths.push_back({path.latency * 4, path.bandwidth / 4});
    }
    slower.network = std::make_shared<MatrixNetwork>(endpoints, std::move(paths));
    for (const Goal& goal : all_goals(instance.microbatches)) {
      if (goal.objective != Objective::Step) continue;
      const Plan plan = allocate("exact", instance.workload, instance.cluster, goal, {});
      const Plan slow = allocate("exact", instance.workload, slower, goal, {});
      ASSERT_EQ(plan.objective.has_value(), slow.objective.has_value());
      if (!plan.objective) continue;
      EXPECT_NEAR(slow.objective->value, 4 * plan.objective->value, 1e-8 * slow.objective->value);
    }
  }
}

TEST(ExactStep, SearchesForABoundBelowTheBestWhenACompleteSearchTakesTooLong)
{
  std::mt19937_64 random(16);
  std::size_t between = 0;
  for (int number = 0; number < 3; ++number) {
    const Workload workload = random_chain(random, 16);
    const Cluster cluster = random_sites(random, 3, 4, 1e9);
    SearchLimits limits;
    limits.budget = 80;
    const Goal goal{Objective::Step, Communication::Played, choice_of(ChainSchedule::OneForwardOneBackward), 8};
    Plan plan = allocate("exact", workload, cluster, goal, limits);
    if (plan.certificate.kind != CertificateKind::Search || plan.gap_fraction() < 1e-6) continue;
    ++between;
    EXPECT_TRUE(faults_of_certificate(plan, workload, cluster).empty()) << number;
    EXPECT_GT(plan.certificate.rungs.size(), 1U) << number;
    plan.objective_bound = Seconds(plan.objective->value * 1.001);
    EXPECT_FALSE(faults_of_certificate(plan, workload, cluster).empty()) << number;
  }
  EXPECT_GT(between, 0U);
}

TEST(ExactStep, TimesOutWhenItsLimitsComeBeforeAnyProof)
{
  std::mt19937_64 random(15);
  const Workload workload = random_chain(random, 12);
  const Cluster cluster = random_cluster(random, 6, 1e9);
  SearchLimits limits;
  limits.budget = 1;
  const Plan plan = allocate("exact", workload, cluster, Goal{}, limits);
  EXPECT_EQ(plan.outcome, Outcome::TimedOut);
  EXPECT_FALSE(plan.stages.empty());
  EXPECT_TRUE(faults_of_certificate(plan, workload, cluster).empty());
}

}  // namespace isobar::allocators::exact_step_test

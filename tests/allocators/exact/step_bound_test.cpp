#include "allocators/exact/step_bound.hpp"
#include "allocators/registry.hpp"

#include "allocators/allocator.hpp"

#include "core/certificates/certificate_checker.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/allocators/exact/step_turns.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace isobar::allocators::step_bound_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

constexpr ChainSchedule schedules[] = {ChainSchedule::Sequential, ChainSchedule::GPipe,
                                       ChainSchedule::OneForwardOneBackward};

/// The largest of P + floor((M-1) / K_i) x l_i, the round trips of what stage i has in flight.
double round_trips(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  const Turns turns = turns_of(cost, stages, goal);
  double round_trip = 0;
  double largest = 0;
  for (std::size_t i = stages.size(); i-- > 0;) {
    const auto& [device, first, last] = stages[i];
    round_trip += cost.compute_time(device, first, last).value;
    if (i + 1 < stages.size() && !goal.has_free_transfers()) {
      round_trip += (cost.output_transfer(device, stages[i + 1].device, last + 1).total() +
                     cost.gradient_transfer(device, stages[i + 1].device, last + 1).total())
                        .value;
    }
    const auto slots =
        microbatches_in_flight(require_chain_schedule(goal.schedule), stages.size() - 1 - i, goal.microbatches);
    largest = std::max(largest, turns.alone + static_cast<double>((goal.microbatches - 1) / slots) * round_trip);
  }
  return largest;
}

/// A random cluster: paths by pair or by site, some with latencies of a few times a stage's work.
Cluster random_paths(std::mt19937_64& random, int number, std::size_t devices)
{
  const double memory = number % 2 == 0 ? 1e9 : 80 * std::pow(0.5, static_cast<double>(random() % 3));
  if (number % 5 == 4) return random_sites(random, 1 + random() % 2, (devices + 1) / 2, memory);
  Cluster cluster = random_cluster(random, devices, memory);
  if (number % 5 != 3) return cluster;
  std::vector<Path> paths;
  for (std::size_t i = 0; i <= devices; ++i) {
    for (std::size_t j = 0; j <= devices; ++j) {
      const Path path = i == j ? Path{} : cluster.path(i, j);
      paths.push_back({path.latency * 100, path.bandwidth});
    }
  }
  cluster.network = std::make_shared<MatrixNetwork>(devices + 1, std::move(paths));
  return cluster;
}

TEST(StepBound, ByTurnsIsNeverAboveAStep)
{
  std::mt19937_64 random(31);
  double tightest = 0;
  std::size_t compared = 0;
  for (int number = 0; number < 400; ++number) {
    const Workload workload = random_chain(random, 1 + random() % 6);
    const Cluster cluster = random_paths(random, number, 1 + random() % 4);
    const CostModel cost(workload, cluster);
    const std::uint64_t microbatches = 1 + random() % 9;
    for (const Goal& goal : all_goals(microbatches)) {
      if (goal.objective != Objective::Step) continue;
      const ObjectiveWeights weights = weights_of(goal);
      for_each_placement(cost.layers(), cost.devices(), true, [&](const auto& stages) {
        const Turns turns = turns_of(cost, stages, goal);
        const double step = cost.evaluate(stages, goal).objective.value;
        const double bound = weights.alpha * turns.largest + weights.beta * turns.alone;
        ASSERT_LE(bound, step * (1 + 1e-12)) << number;
        if (goal.schedule == choice_of(ChainSchedule::OneForwardOneBackward)) {
          ASSERT_LE(round_trips(cost, stages, goal), step * (1 + 1e-12)) << number;
        }
        if (stages.size() > 2) tightest = std::max(tightest, bound / step);
        ++compared;
      });
    }
  }
  EXPECT_GT(compared, 100'000U);
  EXPECT_GT(tightest, 0.999);
}

TEST(StepBound, ImprovesAndIsNeverAboveTheLeastStep)
{
  std::mt19937_64 random(32);
  std::size_t better = 0;
  for (int number = 0; number < 200; ++number) {
    const Workload workload = random_chain(random, 2 + random() % 5);
    const Cluster cluster = random_paths(random, number, 2 + random() % 3);
    const CostModel cost(workload, cluster);
    for (const ChainSchedule schedule : schedules) {
      const Goal goal{Objective::Step, Communication::Played, choice_of(schedule), 2 + random() % 7};
      const double least = least_objectives(cost, {goal}, true).front();
      StepBound bound(cost, goal, [] {});
      if (std::isfinite(least)) bound.set_incumbent(least, least);
      bound.begin(0.1);
      const double first = bound.value();
      for (int round = 0; round < 12 && bound.refine(); ++round) {
      }
      EXPECT_GE(bound.value(), first);
      if (bound.value() > first * 1.01) ++better;
      ASSERT_LE(bound.value(), least) << number << name_of(schedule);
      Plan plan;
      plan.goal = goal;
      plan.objective_bound = Seconds(bound.value());
      plan.certificate = bound.certificate();
      if (!std::isfinite(bound.value())) continue;
      const auto faults = faults_of_certificate(plan, workload, cluster);
      ASSERT_TRUE(faults.empty()) << number << faults.front();
      plan.objective_bound =
          Seconds(1.001 * std::max(bound.value(), check_certificate(plan, workload, cluster).proven.value));
      ASSERT_FALSE(faults_of_certificate(plan, workload, cluster).empty()) << number;
    }
  }
  EXPECT_GT(better, 100U);
}

TEST(StepBound, CountsRoundTripsWhereHopsAreLong)
{
  // Five equal devices, 5 s apart: eight micro-batches, which take 3 s a layer, wait for their slots.
  const Workload workload = chain(std::vector<double>(10, 1), 10);
  const Cluster cluster = testing_support::cluster({1, 1, 1, 1, 1}, {Seconds(5), BytesPerSecond(1e9)}, 170);
  const CostModel cost(workload, cluster);
  const Goal goal{Objective::Step, Communication::Played, choice_of(ChainSchedule::OneForwardOneBackward), 8};
  const double least = least_objectives(cost, {goal}, true).front();
  StepBound bound(cost, goal, [] {});
  bound.set_incumbent(least, 6);
  bound.begin(1);
  while (bound.refine()) {
  }
  const auto& rungs = bound.certificate().rungs;
  EXPECT_TRUE(std::any_of(rungs.begin(), rungs.end(), [](const auto& rung) { return rung.slots > 0; }));
  Plan plan;
  plan.goal = goal;
  plan.objective_bound = Seconds(bound.value());
  plan.certificate = bound.certificate();
  EXPECT_TRUE(faults_of_certificate(plan, workload, cluster).empty());
  plan.goal.schedule = choice_of(ChainSchedule::GPipe);
  const auto faults = faults_of_certificate(plan, workload, cluster);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults.front().find("only a path of objective step under 1f1b counts them"), std::string::npos)
      << faults.front();
}

TEST(StepBound, ProvesMostOfTheStepOfSkysClusters)
{
  for (const auto& [devices, encoders] : {std::pair{3, 10}, {15, 24}}) {
    const Workload workload = sky_bert(static_cast<std::uint64_t>(encoders));
    const Cluster cluster = sky_cluster(static_cast<std::size_t>(devices));
    SearchLimits limits;
    limits.budget = 60;
    for (const auto communication : {Communication::Played, Communication::None}) {
      const Goal goal{Objective::Step, communication, choice_of(ChainSchedule::OneForwardOneBackward), 8};
      const Plan plan = allocate("exact", workload, cluster, goal, limits);
      EXPECT_LE(plan.gap_fraction().value(), 0.12) << devices;
      EXPECT_TRUE(faults_of_certificate(plan, workload, cluster).empty()) << devices;
    }
  }
}

}  // namespace
}  // namespace isobar::allocators::step_bound_test

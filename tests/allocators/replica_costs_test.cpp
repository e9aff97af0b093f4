#include "allocators/replica_costs.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/played_plan.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/plan/transfer_rules.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shard_grids.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace isobar::allocators::replica_costs_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::IsEmpty;

/// A plan over all devices of a cluster, in which some stages have two or three replicas, or shards.
Plan random_replicas(std::mt19937_64& random, const Cluster& cluster, std::size_t layers, const std::string& schedule)
{
  Plan plan;
  plan.goal.schedule = schedule_from_text(schedule);
  plan.goal.microbatches = 6 * (1 + random() % 3);
  const std::uint64_t all = plan.goal.microbatches;
  const std::vector<std::vector<std::uint64_t>> counts = {
      {0}, {all / 2, all / 2}, {all / 6, all - all / 6}, {all / 3, all / 6, all / 2}};
  std::vector<std::string> devices;
  for (const auto& device : cluster.devices) devices.push_back(device.name);
  while (!devices.empty()) {
    const auto& chosen = counts[random() % counts.size()];
    const std::size_t shards = 1 + random() % 4;
    if (chosen.size() * shards > devices.size()) continue;
    const bool is_unlike = chosen.size() * most_unlike_shards <= devices.size() && random() % 3 == 0;
    plan.stages.push_back(is_unlike ? stage_of_unlike_replicas(random, chosen, devices)
                                    : random_stage(random, chosen, shards, devices));
  }
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    plan.stages[i].first_layer = layers * i / plan.stages.size();
    plan.stages[i].last_layer = layers * (i + 1) / plan.stages.size() - 1;
  }
  plan.stages = by_layers(plan.stages);
  return plan;
}

/// Makes replicas and shards work together by sites. Returns whether some shards then do.
bool lie_in_sites(Plan& plan, const Cluster& cluster)
{
  bool is_hierarchical = false;
  plan.sync.algorithm = Algorithm::Hierarchical;
  for (auto& stage : plan.stages) {
    for (auto& replica : stage.replicas) {
      std::vector<std::string> sites;
      for (auto& shard : replica.shards) {
        shard.site = cluster.devices[*cluster.device_index(shard.device)].site;
        sites.push_back(*shard.site);
      }
      is_hierarchical = is_hierarchical || algorithm_of_shards(plan.sync.algorithm, sites) == Algorithm::Hierarchical;
    }
  }
  return is_hierarchical;
}

TEST(ReplicaCosts, AreNotAboveAnyPlayedStepAndAreThoseOfTheChecker)
{
  std::mt19937_64 random(11);
  std::size_t close = 0;
  std::size_t priced = 0;
  std::size_t close_with_shards = 0;
  std::size_t priced_with_shards = 0;
  std::size_t hierarchical = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t layers = 8 + random() % 6;
    Workload workload = random_chain(random, layers);
    add_splits(random, workload);
    Cluster cluster = random_cluster(random, 2 + random() % 6, 1e9);
    for (auto& device : cluster.devices) {
      device.collective_start = Seconds(round % 2 * static_cast<double>(random() % 5) / 1000);
      device.site = round % 3 == 0 ? "all" : random() % 2 == 0 ? "east" : "west";
    }
    for (const std::string schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"}) {
      Plan plan = random_replicas(random, cluster, layers, schedule);
      plan.data_server = cluster.data_server;
      plan.outcome = Outcome::Feasible;
      if (round % 3 > 0 && lie_in_sites(plan, cluster)) ++hierarchical;
      if (round % 5 == 0) plan.goal.communication = Communication::None;
      if (is_chain(plan)) continue;
      plan.transfers.sliced = random() % 2 == 0;
      plan.transfers.blocking = random() % 2 == 0;
      if (fault_of_transfers(plan)) plan.transfers.blocking = false;
      price_by_playing(plan, workload, cluster);
      ++(has_shards(plan) ? priced_with_shards : priced);
      const double step = plan.predicted->step_time.value;
      ASSERT_GE(step, plan.step_bound->value * (1 - 1e-12)) << schedule << round;
      const auto program = schedules::make_program(plan, workload, cluster);
      ASSERT_THAT(faults_of(plan, workload, cluster), IsEmpty()) << schedule << round;
      ASSERT_THAT(faults_of_played(plan, workload, cluster, *program), IsEmpty()) << schedule << round;
      ASSERT_GE(step, played_bound(CostModel(workload, cluster), plan.goal, true).value.value * (1 - 1e-12));
      ASSERT_THAT(faults_of_certificate(plan, workload, cluster), IsEmpty()) << schedule << round;
      (has_shards(plan) ? close_with_shards : close) += plan.step_bound->value > 0.7 * step ? 1U : 0U;
    }
  }
  EXPECT_GT(priced, 400U);
  EXPECT_GT(close, priced / 4);
  EXPECT_GT(priced_with_shards, 500U);
  EXPECT_GT(close_with_shards, priced_with_shards / 4);
  EXPECT_GT(hierarchical, 5U);
}

TEST(ReplicaCosts, AreThoseOfTheCheckerForGridsOfShards)
{
  std::mt19937_64 random(3);
  const Workload workload = gpt_for_grids();
  for (int round = 0; round < 108; ++round) {
    const auto grids = small_rows_and_grids();
    const ShardGrid& grid = grids[static_cast<std::size_t>(round) % grids.size()];
    for (const std::string schedule : {"gpipe", "1f1b", "zero-bubble-h1"}) {
      Plan plan;
      plan.goal.schedule = schedule_from_text(schedule);
      plan.goal.microbatches = 4;
      plan.outcome = Outcome::Feasible;
      const std::vector<std::uint64_t> replicas =
          random() % 2 == 0 ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{1, 3};
      const std::size_t stages = 1 + random() % 2;
      const Cluster cluster = random_cluster(random, stages * replicas.size() * grid.blocks(), 1e9);
      plan.data_server = cluster.data_server;
      std::vector<std::string> devices;
      for (const auto& device : cluster.devices) devices.push_back(device.name);
      for (std::size_t i = 0; i < stages; ++i) {
        plan.stages.push_back(stage_of_grids(6 * i / stages, 6 * (i + 1) / stages - 1, grid, replicas, devices));
      }
      plan.stages = by_layers(plan.stages);
      price_by_playing(plan, workload, cluster);
      SCOPED_TRACE(schedule + " " + text_of(grid));
      ASSERT_GE(plan.predicted->step_time.value, plan.step_bound->value * (1 - 1e-12));
      ASSERT_THAT(faults_of(plan, workload, cluster), IsEmpty());
      ASSERT_THAT(faults_of_played(plan, workload, cluster, *schedules::make_program(plan, workload, cluster)),
                  IsEmpty());
      ASSERT_THAT(faults_of_certificate(plan, workload, cluster), IsEmpty());
    }
  }
}

TEST(ReplicaCosts, CountADeviceByItsPartOfTheMicroBatches)
{
  const Workload workload = chain({1, 1});
  const Cluster platform = cluster({1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)});
  Plan plan;
  plan.goal.microbatches = 8;
  plan.stages = {{0, 0, {{6, {Shard{"d0"}}}, {2, {Shard{"d1"}}}}}, {1, 1, {{0, {Shard{"d2"}}}}}};
  price_by_playing(plan, workload, platform);
  const double whole = CostModel(workload, platform).compute_time(0, 0, 0).value;
  EXPECT_DOUBLE_EQ(plan.predicted->bottleneck.value, whole);  // of d2, which takes all; d0 takes three quarters
  EXPECT_DOUBLE_EQ(plan.predicted->sequential.value, 2 * whole);
  EXPECT_DOUBLE_EQ(plan.step_bound->value, (1 + 8) * whole);  // d2 begins after the first forward, and one goes back
}

}  // namespace
}  // namespace isobar::allocators::replica_costs_test

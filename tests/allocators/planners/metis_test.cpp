#include "allocators/planners/metis.hpp"

#include "allocators/planners/metis_groups.hpp"
#include "allocators/planners/sharded_layers.hpp"
#include "allocators/registry.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shards.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace isobar::allocators::metis_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::UnorderedElementsAre;
using Sizes = std::vector<std::size_t>;

Plan metis(const Workload& workload, const Cluster& devices, const Goal& goal, const SearchLimits& limits = {})
{
  return allocate("metis", workload, devices, goal, limits);
}

SearchLimits with_shape(std::optional<std::uint64_t> pipeline, std::optional<std::uint64_t> replicas = {},
                        std::optional<std::uint64_t> tensor = {})
{
  SearchLimits limits;
  limits.grid = {pipeline, replicas, tensor};
  return limits;
}

std::string fault_of(const Workload& workload, const Cluster& devices, const Goal& goal,
                     const SearchLimits& limits = {})
{
  try {
    metis(workload, devices, goal, limits);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

std::vector<std::uint64_t> microbatches_of(const Stage& stage)
{
  std::vector<std::uint64_t> counts;
  for (const auto& replica : stage.replicas) counts.push_back(replica.microbatches);
  return counts;
}

/// "4 x 2" for each stage: replicas x shards.
std::vector<std::string> shapes_of(const Plan& plan)
{
  std::vector<std::string> shapes;
  const auto pipeline_stage = pipeline_stages(plan);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    if (i > 0 && pipeline_stage[i] == pipeline_stage[i - 1]) continue;
    const auto& replicas = plan.stages[i].replicas;
    shapes.push_back(fmt::format("{} x {}", replicas.size(), replicas.front().shards.size()));
  }
  return shapes;
}

TEST(GroupSizes, ArePowersOfTwoOfAtLeastHalfTheMean)
{
  EXPECT_THAT(group_sizes(8, 1, 100), ElementsAre(Sizes{8}));
  EXPECT_THAT(group_sizes(8, 2, 100), ElementsAre(Sizes{4, 4}));
  EXPECT_THAT(group_sizes(8, 3, 100), ElementsAre(Sizes{2, 2, 4}, Sizes{2, 4, 2}, Sizes{4, 2, 2}));
  EXPECT_THAT(group_sizes(7, 1, 100), ElementsAre());
  EXPECT_THAT(group_sizes(6, 2, 100), ElementsAre(Sizes{2, 4}, Sizes{4, 2}));
  EXPECT_THAT(group_sizes(3, 3, 100), ElementsAre(Sizes{1, 1, 1}));
}

TEST(GroupSizes, AreAllWhereFourBlocksHaveEveryOrder)
{
  for (std::size_t devices = 1; devices <= 20; ++devices) {
    for (std::size_t stages = 1; stages <= std::min<std::size_t>(devices, 4); ++stages) {
      std::set<Sizes> all;
      const auto add = [&](const auto& self, Sizes sizes) -> void {
        const std::size_t sum = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
        if (sizes.size() == stages) {
          if (sum == devices) all.insert(sizes);
          return;
        }
        for (std::size_t size = 1; sum + size <= devices; size *= 2) {
          if (2 * size < devices / stages) continue;
          sizes.push_back(size);
          self(self, sizes);
          sizes.pop_back();
        }
      };
      add(add, {});
      const auto found = group_sizes(devices, stages, 1000);
      EXPECT_EQ(std::set<Sizes>(found.begin(), found.end()), all) << devices << " " << stages;
      EXPECT_EQ(found.size(), all.size());
    }
  }
}

TEST(GroupSizes, BeginWithTheMostEqualOnesAndEndAtTheLimit)
{
  const auto found = group_sizes(256, 100, 50);
  ASSERT_EQ(found.size(), 50U);
  EXPECT_EQ(*std::max_element(found[0].begin(), found[0].end()), 4U);
  for (const auto& sizes : found) {
    EXPECT_EQ(sizes.size(), 100U);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), 256U);
  }
}

TEST(Metis, DividesMicrobatchesOfAStageBySpeed)
{
  // Micro-batches of 3 s on the slow device and 1 s on the fast one: both are busy for 6 s of eight.
  const Plan plan = metis(chain({1}), cluster({1, 3}), goal_under("1f1b", 8));
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_THAT(microbatches_of(plan.stages[0]), UnorderedElementsAre(2, 6));
  EXPECT_DOUBLE_EQ(plan.objective->value, 6);
  // Of 1.5 and 4.5 micro-batches the fast device takes the one that is left over.
  EXPECT_THAT(microbatches_of(metis(chain({1}), cluster({1, 3}), goal_under("1f1b", 6)).stages[0]),
              UnorderedElementsAre(1, 5));
}

TEST(Metis, LeavesAReplicaWithoutMicrobatchesIdle)
{
  const Plan plan = metis(chain({1}), cluster({1, 100}), goal_under("1f1b", 2));
  EXPECT_THAT(devices_of(plan), ElementsAre("d1"));
  EXPECT_DOUBLE_EQ(plan.objective->value, 0.06);
}

TEST(Metis, TakesTheOrderOfTypesThatMemoryAllows)
{
  // The first layer is nearly all work and the second nearly all parameters, which only the slow device has room for.
  Workload workload = chain({10, 1});
  workload.layers[1].parameters = 100;
  Cluster devices = cluster({1, 10});
  devices.devices[1].memory = Bytes(500);  // 1600 B needed
  const Plan plan = metis(workload, devices, goal_under("1f1b", 8));
  EXPECT_THAT(devices_of(plan), ElementsAre("d1", "d0"));
  // The other way around, with the parameters first.
  std::swap(workload.layers[0].parameters, workload.layers[1].parameters);
  std::swap(workload.layers[0].forward, workload.layers[1].forward);
  std::swap(workload.layers[0].backward, workload.layers[1].backward);
  EXPECT_THAT(devices_of(metis(workload, devices, goal_under("1f1b", 8))), ElementsAre("d0", "d1"));
}

TEST(Metis, CutsLayersByTheSpeedOfEachGroup)
{
  // Two devices of speed 1 and two of speed 3: groups of two replicas take 3 of twelve layers and 9, for 4.5 s each.
  const Plan plan = metis(chain(std::vector<double>(12, 1.0), 0, 0, 0), cluster({1, 3, 1, 3}), goal_under("1f1b", 64),
                          with_shape(2, 2));
  ASSERT_EQ(plan.stages.size(), 2U);
  const bool is_slow_first = plan.stages[0].replicas[0].shards[0].device == "d0";
  EXPECT_EQ(plan.stages[0].last_layer, is_slow_first ? 2U : 8U);
  EXPECT_DOUBLE_EQ(plan.objective->value, 33 * 9);  // 32 micro-batches of a replica, each 9 s in both stages
}

TEST(Metis, DoublesShardsWhileMemoryFails)
{
  const Workload workload = divisible(1);
  const double whole = CostModel(workload, cluster({1})).memory(0, 0, 1).value;
  const auto at = [&](double memory) {
    return metis(workload, cluster(std::vector<double>(4, 1.0), {Seconds(0), BytesPerSecond(1e30)}, memory),
                 goal_under("1f1b", 4));
  };
  EXPECT_THAT(shapes_of(at(whole)), ElementsAre("4 x 1"));
  EXPECT_THAT(shapes_of(at(0.95 * whole)), ElementsAre("2 x 2"));
  const Cluster one = cluster({1});
  const CostModel cost(workload, one);
  const double half = ShardedLayers(cost, 2).memory(0, 0, 1).value;
  EXPECT_THAT(shapes_of(at(half)), ElementsAre("2 x 2"));
  EXPECT_THAT(shapes_of(at(0.95 * half)), ElementsAre("1 x 4"));
  EXPECT_THAT(at(0.1 * whole).stages, testing::IsEmpty());
}

TEST(Metis, GivesStagesOtherNumbersOfReplicasAndShards)
{
  // The second layer has twice the work of the first, and fits on two devices only: it gets four of six.
  Workload workload = divisible(2);
  workload.layers[1].parameters = workload.layers[1].split->parameters = 800;
  workload.layers[1].forward = Flops(16);
  workload.layers[1].backward = Flops(32);
  const Cluster devices = cluster(std::vector<double>(6, 1.0), {Seconds(0), BytesPerSecond(1e30)}, 3500);
  const Plan plan = metis(workload, devices, goal_under("1f1b", 4), with_shape(2));
  EXPECT_THAT(shapes_of(plan), ElementsAre("2 x 1", "2 x 2"));
}

TEST(Metis, NeedsNoMoreReplicasThanMicrobatches)
{
  // Eight replicas cannot divide four micro-batches.
  const Plan plan =
      metis(chain(std::vector<double>(8, 1.0)), cluster(std::vector<double>(8, 1.0)), goal_under("1f1b", 4));
  for (const auto& stage : plan.stages) EXPECT_LE(stage.replicas.size(), 4U);
}

TEST(Metis, MakesPlansThatPassTheCheckersOnRandomTypes)
{
  std::mt19937_64 random(9);
  std::size_t with_replicas = 0;
  std::size_t with_other_shares = 0;
  std::size_t with_shards = 0;
  std::size_t infeasible = 0;
  for (int instance = 0; instance < 150; ++instance) {
    const bool has_splits = instance % 3 == 0;
    Workload workload = random_chain(random, has_splits ? 1 + random() % 3 : 2 + random() % 9);
    if (has_splits) add_splits(random, workload);
    if (has_splits || instance % 2 == 0) workload.memory_model = MemoryModel::Training;
    const double memory = instance % 4 == 1 ? 1e9 : (has_splits ? 5 : 10) + static_cast<double>(random() % 40);
    const Cluster devices = random_types(random, 2 + random() % 2, 3 + random() % 6, memory);
    const char* schedule = instance % 5 == 0 ? "gpipe" : instance % 5 == 1 ? "zero-bubble-h1" : "1f1b";
    const Goal goal = goal_under(schedule, 4 + random() % 9);
    const auto limits = instance % 6 == 0 ? with_shape({}, {}, 2) : SearchLimits();
    const Plan plan = metis(workload, devices, goal, limits);
    if (plan.stages.empty()) {
      ++infeasible;
      EXPECT_EQ(plan.outcome, Outcome::Infeasible);
      EXPECT_FALSE(plan.reason.empty());
      continue;
    }
    with_replicas += has_replicas(plan) ? 1 : 0;
    with_shards += has_shards(plan) ? 1 : 0;
    for (const auto& stage : plan.stages) {
      const auto counts = microbatches_of(stage);
      if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) continue;
      ++with_other_shares;
      break;
    }
    EXPECT_EQ(plan.stages.back().last_layer + 1, workload.layers.size());
    EXPECT_THAT(faults_of_certificate(plan, workload, devices), testing::IsEmpty());
    Plan again = metis(workload, devices, goal, limits);
    again.search_time = plan.search_time;
    EXPECT_EQ(plan_to_json(plan), plan_to_json(again));
  }
  EXPECT_GT(with_replicas, 20U);
  EXPECT_GT(with_other_shares, 10U);
  EXPECT_GT(with_shards, 3U);
  EXPECT_GT(infeasible, 3U);
}

TEST(Metis, JoinsMoreThanFourTypesOfNeighboursInSpeed)
{
  std::vector<double> speeds(32);
  std::iota(speeds.begin(), speeds.end(), 1.0);
  const Workload workload = chain(std::vector<double>(64, 1.0));
  const ChainView view = chain_view(workload);
  const Cluster devices = cluster(speeds);
  for (const auto& plan : propose_by_metis({workload, view, devices, goal_under("1f1b", 64), {}}).plans) {
    std::vector<std::size_t> classes;  // of eight devices each
    for (const auto& name : devices_of(plan)) {
      const std::size_t of_device = *devices.device_index(name) / 8;
      if (classes.empty() || classes.back() != of_device) classes.push_back(of_device);
    }
    EXPECT_THAT(classes, UnorderedElementsAre(0, 1, 2, 3));
  }
}

TEST(Metis, SaysWhyThereIsNone)
{
  const Workload workload = chain({1, 1, 1}, 10);
  EXPECT_EQ(metis(workload, cluster({1, 1, 1, 1}), goal_under("1f1b", 8), with_shape(4)).reason,
            "there is no such pipeline of all 4 devices: 4 stages need as many devices, and layers that can be cut "
            "apart, and there are 4 and 3");
  EXPECT_EQ(metis(workload, cluster({1, 1, 1, 1}), goal_under("1f1b", 8), with_shape(1, 2)).reason,
            "there is no such pipeline of all 4 devices: layer layer0 cannot be divided; a gpt or llama needs unit: "
            "operator");
  EXPECT_EQ(metis(divisible(2), cluster({1, 1, 1, 1}), goal_under("1f1b", 8), with_shape(1, {}, 3)).reason,
            "there is no such pipeline of all 4 devices: groups are of powers of two, which 3 shards do not divide");
  EXPECT_EQ(metis(workload, cluster({1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 100), goal_under("1f1b", 8)).reason,
            "no pipeline of all 2 devices fits in memory; 2 stages: layers 1..2 need 160 B and a device there has "
            "100 B");
  EXPECT_EQ(fault_of(workload, cluster({1, 1}), goal_under("zero-bubble-v")),
            "schedule: zero-bubble-v gives a device several stages; allocator metis takes 1f1b, gpipe, sequential, "
            "zero-bubble-h1, zero-bubble-h2");
  SearchLimits limits;
  limits.grid.splits = ShardGrid::Form::Sequence;
  EXPECT_EQ(fault_of(workload, cluster({1, 1}), goal_under("1f1b"), limits),
            "splits: sequence needs as many shards in all stages; allocator metis divides layers in 1d");
}

TEST(Metis, StopsAtTheBudgetWithTheBestSoFar)
{
  const Workload workload = chain(std::vector<double>(12, 1.0), 1, 0, 5);
  const Cluster devices = cluster(std::vector<double>(12, 1.0), {Seconds(1), BytesPerSecond(10)});
  SearchLimits limits;
  limits.budget = 20;
  const Plan plan = metis(workload, devices, goal_under("1f1b", 24), limits);
  EXPECT_EQ(plan.outcome, Outcome::TimedOut);
  EXPECT_FALSE(plan.stages.empty());
  limits.budget = 1'000'000;
  EXPECT_NE(metis(workload, devices, goal_under("1f1b", 24), limits).outcome, Outcome::TimedOut);
  limits.time_limit = Seconds(0);
  EXPECT_EQ(metis(workload, devices, goal_under("1f1b", 24), limits).reason,
            "the limits ended the search before it found a plan");
}

}  // namespace
}  // namespace isobar::allocators::metis_test

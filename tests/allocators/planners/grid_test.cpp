#include "allocators/planners/grid.hpp"

#include "allocators/registry.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shard_grids.hpp"
#include "tests/support/shards.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators::grid_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

SearchLimits with_shape(std::optional<std::uint64_t> pipeline, std::optional<std::uint64_t> replicas)
{
  SearchLimits limits;
  limits.grid = {pipeline, replicas};
  return limits;
}

using Shapes = std::vector<std::pair<std::size_t, std::size_t>>;

std::pair<std::size_t, std::size_t> shape_of(const Plan& plan)
{
  return {devices_of(plan).size() / plan.stages.front().replicas.size(), plan.stages.front().replicas.size()};
}

Plan grid(const Workload& workload, const Cluster& devices, const Goal& goal, const SearchLimits& limits = {})
{
  return allocate("grid", workload, devices, goal, limits);
}

std::string fault_of(const Workload& workload, const Cluster& devices, const Goal& goal)
{
  try {
    grid(workload, devices, goal);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

/// What the allocator proposes.
Shapes shapes(const Workload& workload, const Cluster& devices, const Goal& goal, const SearchLimits& limits = {})
{
  const ChainView view = chain_view(workload);
  Shapes result;
  for (const auto& plan : propose_grids({workload, view, devices, goal, limits}).plans) {
    if (plan.sync == Sync{}) result.push_back(shape_of(plan));
  }
  return result;
}

TEST(Grid, TriesEveryShapeOfItsDevices)
{
  const Workload workload = chain(std::vector<double>(12, 1.0));
  EXPECT_THAT(shapes(workload, cluster(std::vector<double>(12, 1.0)), goal_under("1f1b", 24)),
              UnorderedElementsAre(std::pair(1, 12), std::pair(2, 6), std::pair(3, 4), std::pair(4, 3), std::pair(6, 2),
                                   std::pair(12, 1)));
  // Five replicas do not divide eight micro-batches, so that four are used.
  EXPECT_THAT(shapes(workload, cluster(std::vector<double>(5, 1.0)), goal_under("1f1b")),
              UnorderedElementsAre(std::pair(1, 4), std::pair(5, 1)));
}

TEST(Grid, AlsoLeavesTheSlowestDevicesOut)
{
  const Workload workload = chain(std::vector<double>(6, 1.0));
  EXPECT_THAT(shapes(workload, cluster({1, 4, 2, 4, 1, 1}), goal_under("1f1b", 12)),
              UnorderedElementsAre(std::pair(1, 6), std::pair(2, 3), std::pair(3, 2), std::pair(6, 1), std::pair(1, 3),
                                   std::pair(3, 1), std::pair(1, 2), std::pair(2, 1)));
  // Three devices of speed 1 would take most of the step.
  const Plan plan = grid(workload, cluster({1, 40, 1, 40, 1, 1}), goal_under("1f1b", 12));
  EXPECT_THAT(devices_of(plan), UnorderedElementsAre("d1", "d3"));
}

TEST(Grid, LaysReplicasOfAStageNextToEachOtherWithEqualLayersAndMicrobatches)
{
  const Plan plan = grid(chain(std::vector<double>(7, 1.0)), cluster(std::vector<double>(6, 1.0)),
                         goal_under("1f1b", 12), with_shape(3, 2));
  EXPECT_THAT(devices_of(plan), ElementsAre("d0", "d1", "d2", "d3", "d4", "d5"));
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[0].last_layer, 2U);
  EXPECT_EQ(plan.stages[1].last_layer, 4U);
  EXPECT_EQ(plan.stages[2].last_layer, 6U);
  for (const auto& stage : plan.stages) {
    ASSERT_EQ(stage.replicas.size(), 2U);
    for (const auto& replica : stage.replicas) EXPECT_EQ(replica.microbatches, 6U);
  }
}

TEST(Grid, KeepsTheShortestStepOfAllShapesAndPassesTheCheckers)
{
  std::mt19937_64 random(5);
  std::size_t with_replicas = 0;
  std::size_t without = 0;
  for (int instance = 0; instance < 40; ++instance) {
    Workload workload = random_chain(random, 2 + random() % 8);
    for (auto& layer : workload.layers) {
      layer.parameters /= instance % 4 < 2 ? 1000 : 1;  // then updates and syncs take little time
    }
    const Cluster devices = random_cluster(random, 2 + random() % 5, instance % 2 == 0 ? 1e9 : 60);
    const Goal goal = goal_under(instance % 3 == 0 ? "gpipe" : "1f1b", 12);
    const Plan best = grid(workload, devices, goal);
    if (best.stages.empty()) continue;
    ++(has_replicas(best) ? with_replicas : without);
    EXPECT_LE(*best.objective_bound, *best.objective);
    EXPECT_THAT(faults_of_certificate(best, workload, devices), testing::IsEmpty());
    for (const auto& [pipeline, replicas] : shapes(workload, devices, goal)) {
      const Plan other = grid(workload, devices, goal, with_shape(pipeline, replicas));
      if (other.stages.empty()) continue;
      EXPECT_GE(*other.objective, *best.objective) << pipeline << " " << replicas;
    }
  }
  EXPECT_GT(with_replicas, 5U);
  EXPECT_GT(without, 5U);
}

TEST(Grid, TriesAtMost64NumbersOfDevicesOfDifferentSpeeds)
{
  std::vector<double> speeds(500);
  std::iota(speeds.begin(), speeds.end(), 1.0);
  const auto found = shapes(chain(std::vector<double>(500, 1.0)), cluster(speeds), goal_under("1f1b", 1));
  EXPECT_GE(found.size(), 64U);
  EXPECT_LT(found.size(), 64U * 25);  // 24: the most divisors of a number up to 500
}

TEST(Grid, IsTheEvenSplitWhereItHasOnePipelineOfAllDevices)
{
  const Workload workload = chain({3, 1, 4, 1, 5, 9, 2, 6}, 1, 1, 1);
  const Cluster devices = cluster({1, 2, 3, 4}, {Seconds(0.1), BytesPerSecond(10)});
  const Goal goal = goal_under("1f1b");
  const Plan plan = grid(workload, devices, goal, with_shape(4, 1));
  const Plan even = allocate("even", workload, devices, goal, {});
  EXPECT_EQ(plan.objective, even.objective);
  EXPECT_EQ(plan.objective_bound, even.objective_bound);
  EXPECT_EQ(plan.predicted->step_time_by, StepTimeBy::Recurrence);
}

TEST(Grid, UsesPipelinesWhereTheModelIsTooLargeForADevice)
{
  const Workload workload = chain(std::vector<double>(8, 1e6), 100);
  const double all = CostModel(workload, cluster({1})).memory(0, 7, 0).value;
  const Plan plan = grid(workload, cluster(std::vector<double>(4, 1.0), {Seconds(0), BytesPerSecond(1e30)}, 0.6 * all),
                         goal_under("1f1b"));
  EXPECT_EQ(shape_of(plan), std::pair(std::size_t{2}, std::size_t{2}));
}

TEST(Grid, NeedsLessMemoryWhereLayersRecompute)
{
  const Workload plain = workload_from_text(R"(model: llama
layers: 24
hidden: 1024
heads: 16
kv_heads: 4
intermediate: 2816
vocabulary: 32000
sequence: 4096
micro_batch: 2
dtype: bf16
optimizer: adamw
unit: operator
)",
                                            "llama.yaml");
  const Cluster devices = cluster(std::vector<double>(4, 1e14), {Seconds(2e-6), BytesPerSecond(1e11)}, 16 * 0x1p30);
  SearchLimits limits = with_shape(1, 1);
  limits.grid.tensor = 4;
  const auto need = [&](std::size_t first, std::size_t end) {
    std::vector<std::size_t> recomputed(end - first);
    std::iota(recomputed.begin(), recomputed.end(), first);
    const Workload workload = with_recomputation(plain, recomputed);
    const Plan plan = grid(workload, devices, goal_under("1f1b"), limits);
    return plan.predicted.value().peak_memory.at("d0").value / 0x1p30;
  };
  // Parameters, gradients and optimizer of a quarter of each layer, what its passes keep, and one workspace.
  EXPECT_NEAR(need(0, 0), 4.297, 0.001);
  EXPECT_NEAR(need(1, 49), 2.466, 0.001);
  EXPECT_NEAR(need(0, 50), 3.011, 0.001);
}

TEST(Grid, DividesWhatDoesNotFitWhole)
{
  Workload workload = chain(std::vector<double>(8, 1e6), 100);
  workload.optimizer = Optimizer::Adam;  // 16 B a parameter, 8 of them the optimizer's state
  const auto sharded_at = [&](double fraction) {
    const double whole = CostModel(workload, cluster({1})).memory(0, 7, 0).value;
    const Cluster devices = cluster({1, 1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, fraction * whole);
    const Plan plan = grid(workload, devices, goal_under("1f1b", 4), with_shape(1, 4));
    if (plan.stages.empty()) return std::string("nothing fits");
    EXPECT_THAT(faults_of_certificate(plan, workload, devices), testing::IsEmpty());
    return fmt::format("{} in {}", name_of(plan.sync.sharded), plan.stages.size());
  };
  EXPECT_EQ(sharded_at(1.001), "optimizer in 1");  // its update is shorter
  EXPECT_EQ(sharded_at(0.626), "optimizer in 1");  // 4 + 4 + 8 / 4 of 16
  // A quarter of all, and of two parts of four all parameters, or of one also its gradients.
  EXPECT_EQ(sharded_at(0.5), "parameters in 4");
  EXPECT_EQ(sharded_at(0.24), "nothing fits");
}

TEST(Grid, AddsUpHierarchicallyBetweenSites)
{
  Workload workload = chain(std::vector<double>(2, 1e6), 1'000'000);
  Cluster devices = cluster({1, 1, 1, 1}, {Seconds(1), BytesPerSecond(1e6)});
  for (std::size_t i = 0; i < 4; ++i) devices.devices[i].site = i < 2 ? "a" : "b";
  std::vector<Path> paths(25, {Seconds(1), BytesPerSecond(1e6)});
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0), std::pair(2, 3), std::pair(3, 2)}) {
    paths[static_cast<std::size_t>(5 * from + to)] = {Seconds(1e-6), BytesPerSecond(1e12)};
  }
  devices.network = std::make_shared<MatrixNetwork>(5, std::move(paths));
  const Plan plan = grid(workload, devices, goal_under("1f1b", 4), with_shape(1, 4));
  EXPECT_EQ(plan.sync.algorithm, Algorithm::Hierarchical);
}

TEST(Grid, FoldsPipelinesAsTheScheduleNeeds)
{
  const Workload workload = chain(std::vector<double>(16, 1.0));
  const Cluster devices = cluster(std::vector<double>(4, 1.0));
  const Plan interleaved = grid(workload, devices, goal_under("interleaved"), with_shape(2, 2));
  EXPECT_EQ(interleaved.stages.size() % 2, 0U);
  EXPECT_GE(interleaved.stages.size(), 4U);
  EXPECT_EQ(interleaved.stages[2].replicas[1].shards.front().device, "d1");
  EXPECT_EQ(grid(workload, devices, goal_under("interleaved(chunks=3)"), with_shape(2, 2)).stages.size(), 6U);
  const Plan v = grid(workload, devices, goal_under("zero-bubble-v"), with_shape(2, 2));
  ASSERT_EQ(v.stages.size(), 4U);
  EXPECT_EQ(v.stages[3].replicas[1].shards.front().device, "d1");
}

TEST(Grid, ChoosesAWarmUpForEachDevice)
{
  Workload workload = chain(std::vector<double>(8, 1.0), 0, 0, 1);
  const Cluster devices = cluster(std::vector<double>(4, 1.0), {Seconds(20), BytesPerSecond(1e9)});
  const Plan plan = grid(workload, devices, goal_under("1f1b(warm_up=auto)", 24), with_shape(2, 2));
  EXPECT_LT(*plan.objective, *grid(workload, devices, goal_under("1f1b", 24), with_shape(2, 2)).objective);
  const auto& numbers = plan.goal.schedule.numbers.at("warm_up");
  ASSERT_EQ(numbers.size(), 4U);
  EXPECT_EQ(numbers[0], numbers[1]);
  EXPECT_EQ(numbers[2], numbers[3]);
}

TEST(Grid, SaysWhyThereIsNone)
{
  const Workload workload = chain({1, 1, 1});
  const Cluster devices = cluster({1, 1, 1, 1});
  EXPECT_EQ(grid(workload, devices, goal_under("1f1b"), with_shape(2, 3)).reason,
            "there is no grid of 2 devices in a pipeline with 3 replicas on 4 devices");
  EXPECT_EQ(grid(workload, devices, goal_under("1f1b"), with_shape(1, 3)).reason,
            "there is no grid of 1 device in a pipeline with 3 replicas on 4 devices: 3 replicas do not divide 8 "
            "micro-batches");
  EXPECT_EQ(
      grid(workload, devices, goal_under("1f1b"), with_shape(4, 1)).reason,
      "there is no grid of 4 devices in a pipeline with 1 replica on 4 devices: 4 stages need as many layers that "
      "can be cut apart, and there are 3");
  EXPECT_EQ(fault_of(workload, devices, goal_under("greedy")),
            "schedule: greedy makes orders for one placement of a chain; allocator grid takes the other schedules");
  EXPECT_EQ(fault_of(workload, devices, Goal::with_defaults(Objective::Bottleneck)),
            "objective: bottleneck is a formula of one chain; the plans of grid are for objective step");
  EXPECT_THAT(fault_of(workload, devices, goal_under("1f1b(warm_up=1/0/0)")), HasSubstr("warm_up"));
}

TEST(Grid, StopsAtTheBudgetWithTheBestSoFar)
{
  SearchLimits limits;
  limits.budget = 2;
  const Plan plan =
      grid(chain(std::vector<double>(12, 1.0), 1, 0, 5),
           cluster(std::vector<double>(12, 1.0), {Seconds(1), BytesPerSecond(10)}), goal_under("1f1b", 24), limits);
  EXPECT_FALSE(plan.stages.empty());
  EXPECT_EQ(plan.outcome, Outcome::TimedOut);
}

TEST(Grid, DividesLayersAmongNeighbours)
{
  Cluster devices = cluster(std::vector<double>(8, 1.0), {Seconds(0), BytesPerSecond(1e9)});
  const Workload workload = divisible(4);
  const Goal goal = goal_under("1f1b", 4);
  for (const auto [pipeline, replicas, tensor] :
       {std::array{1U, 1U, 8U}, std::array{2U, 2U, 2U}, std::array{1U, 4U, 2U}}) {
    SearchLimits limits;
    limits.grid = {pipeline, replicas, tensor};
    const Plan plan = grid(workload, devices, goal, limits);
    ASSERT_EQ(plan.stages.size(), 4U);  // each layer is one
    EXPECT_EQ(pipeline_stages(plan).back() + 1, pipeline);
    for (const auto& stage : plan.stages) {
      ASSERT_EQ(stage.replicas.size(), replicas);
      for (const auto& replica : stage.replicas) {
        ASSERT_EQ(replica.shards.size(), tensor);
        EXPECT_EQ(replica.shards.front().share, 1.0 / tensor);
      }
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < 8; ++i) names.push_back(fmt::format("d{}", i));
    EXPECT_EQ(devices_of(plan), names);
    EXPECT_THAT(faults_of_certificate(plan, workload, devices), testing::IsEmpty());
  }
  // With free communication the devices of a layer are as fast as a longer pipeline without its bubble.
  const Plan best = grid(workload, devices, {.communication = Communication::None, .microbatches = 1});
  EXPECT_EQ(best.stages.front().replicas.front().shards.size(), 8U);
  EXPECT_DOUBLE_EQ(best.predicted->step_time.value, CostModel(workload, devices).compute_time(0, 0, 3).value / 8 +
                                                        CostModel(workload, devices).update_time(0, 0, 3).value / 8);
}

TEST(Grid, DividesLayersOfInterleavedStages)
{
  const Cluster devices = cluster(std::vector<double>(8, 1.0), {Seconds(0), BytesPerSecond(1e9)});
  SearchLimits limits;
  limits.grid = {2, 2, 2};
  const Workload workload = divisible(8);
  const Plan plan = grid(workload, devices, goal_under("interleaved(chunks=2)", 8), limits);
  ASSERT_EQ(plan.stages.size(), 8U);  // each layer is one
  EXPECT_EQ(pipeline_stages(plan), (std::vector<std::size_t>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(plan.stages[0].replicas[0].shards[0].device, plan.stages[4].replicas[0].shards[0].device);
  EXPECT_THAT(faults_of_certificate(plan, workload, devices), testing::IsEmpty());
}

TEST(Grid, DividesLayersWithinASite)
{
  Cluster devices = cluster(std::vector<double>(6, 1.0), {Seconds(0), BytesPerSecond(1e12)});
  for (std::size_t i = 0; i < 6; ++i) devices.devices[i].site = i < 2 ? "near" : "far";
  const Workload workload = divisible(6);
  const Plan best = grid(workload, devices, {.communication = Communication::None, .microbatches = 1});
  EXPECT_EQ(best.stages.front().replicas.front().shards.size(), 2U);  // 3 or 6 would lie in both
}

TEST(Grid, SaysWhyLayersCannotBeDivided)
{
  const Cluster devices = cluster(std::vector<double>(8, 1.0), {Seconds(0), BytesPerSecond(1e9)});
  SearchLimits limits;
  limits.grid.tensor = 2;
  EXPECT_EQ(
      grid(chain({1, 1}), devices, goal_under("1f1b", 4), limits).reason,
      "there is no grid of 2 shards on 8 devices: layer layer0 cannot be divided; a gpt or llama needs unit: operator");
  limits.grid.tensor = 16;
  EXPECT_EQ(grid(divisible(2), cluster(std::vector<double>(16, 1.0), {Seconds(0), BytesPerSecond(1e9)}),
                 goal_under("1f1b", 4), limits)
                .reason,
            "there is no grid of 16 shards on 16 devices: layer layer0 has 8 to divide (heads)");
}

TEST(Grid, DividesLayersOfDevicesWithSeveralStages)
{
  const Cluster devices = cluster(std::vector<double>(4, 1.0), {Seconds(0), BytesPerSecond(1e9)});
  for (const char* schedule : {"zero-bubble-v", "dualpipe-v", "interleaved(chunks=2)"}) {
    for (const std::size_t depth : {1, 2}) {
      SearchLimits limits = with_shape(depth, 1);
      limits.grid.tensor = 2;
      const Plan plan = grid(divisible(8), devices, goal_under(schedule, 4), limits);
      ASSERT_EQ(plan.stages.size(), 8U) << schedule;
      // A V turns on the last devices, which have two stages in a row; with one device, so has every schedule.
      for (std::size_t layer = 0; layer < 8; ++layer) {
        const bool is_turn = layer == 4 && (depth == 1 || std::string_view(schedule) != "interleaved(chunks=2)");
        EXPECT_EQ(plan.stages[layer].starts_chunk, is_turn) << schedule << ", layer " << layer;
      }
    }
  }
}

TEST(Grid, LaysShardsOutInRowsColumnsAndDepth)
{
  using Form = ShardGrid::Form;
  const Workload workload = gpt_for_grids();
  const Goal goal = goal_under("1f1b", 4);
  SearchLimits limits;
  limits.grid.pipeline = 1;
  const auto grids_on = [&](std::size_t count, Form form) {
    const Cluster devices = cluster(std::vector<double>(count, 1.0), {Seconds(0), BytesPerSecond(1e9)});
    const ChainView view = chain_view(workload);
    limits.grid.splits = form;
    std::set<ShardGrid> grids;
    for (const auto& plan : propose_grids({workload, view, devices, goal, limits}).plans) {
      for (const auto& stage : plan.stages) grids.insert(stage.grid);
    }
    return grids;
  };
  EXPECT_THAT(grids_on(4, Form::Sequence),
              UnorderedElementsAre(ShardGrid{Form::Sequence, 2}, ShardGrid{Form::Sequence, 4}));
  EXPECT_THAT(grids_on(8, Form::TwoD), UnorderedElementsAre(ShardGrid{Form::TwoD, 2, 1}));
  EXPECT_THAT(grids_on(36, Form::TwoD), UnorderedElementsAre(ShardGrid{Form::TwoD, 2, 1}, ShardGrid{Form::TwoD, 3, 1}));
  EXPECT_THAT(grids_on(8, Form::TwoAndAHalfD), UnorderedElementsAre(ShardGrid{Form::TwoAndAHalfD, 2, 2}));
  EXPECT_THAT(grids_on(8, Form::ThreeD), UnorderedElementsAre(ShardGrid{Form::ThreeD, 2, 2}));
  const Plan plan =
      grid(workload, cluster(std::vector<double>(8, 1.0), {Seconds(0), BytesPerSecond(1e9)}), goal, limits);
  EXPECT_EQ(plan.stages.front().grid, (ShardGrid{Form::ThreeD, 2, 2}));
  EXPECT_EQ(plan.stages.front().replicas.front().shards.size(), 8U);
}

TEST(Grid, SaysWhyAGridCannotDivideLayers)
{
  const Cluster devices = cluster(std::vector<double>(25, 1.0), {Seconds(0), BytesPerSecond(1e9)});
  SearchLimits limits;
  limits.grid.splits = ShardGrid::Form::TwoD;
  limits.grid.tensor = 25;
  EXPECT_EQ(
      grid(gpt_for_grids(), devices, goal_under("1f1b", 4), limits).reason,
      "there is no grid of 25 shards in 2d on 25 devices: 2d grid [5, 5] of layer embedding, whose micro-batch of "
      "36 is to be a multiple of 5");
  limits.grid.splits = ShardGrid::Form::Sequence;
  limits.grid.tensor = 3;
  EXPECT_EQ(grid(gpt_for_grids(), devices, goal_under("1f1b", 4), limits).reason,
            "there is no grid of 3 shards in sequence on 25 devices: sequence of 3 of layer embedding, whose sequence "
            "of 4 is to be a multiple of 3");
  limits.grid.splits = ShardGrid::Form::TwoD;
  limits.grid.tensor = 8;
  EXPECT_EQ(grid(gpt_for_grids(), devices, goal_under("1f1b", 4), limits).reason,
            "there is no grid of 8 shards in 2d on 25 devices: 8 shards do not lie in such a grid");
}

}  // namespace
}  // namespace isobar::allocators::grid_test

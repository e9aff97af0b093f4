#include "allocators/hybrid/pipeline_steps.hpp"

#include "allocators/hybrid/pipelines.hpp"
#include "allocators/played_plan.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace isobar::allocators::pipeline_steps_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

/// Pipelines over all devices of a cluster, or fewer, each with its own cuts and micro-batches.
std::vector<Pipeline> random_pipelines(std::mt19937_64& random, std::size_t devices, std::size_t layers,
                                       std::uint64_t microbatches)
{
  std::vector<std::size_t> order(devices);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Pipeline> pipelines(1 + random() % std::min<std::size_t>(devices, 4));
  const std::size_t count = pipelines.size();
  const std::size_t length = std::min(devices / count, layers);
  for (std::size_t i = 0; i < count; ++i) {
    pipelines[i].microbatches = microbatches * (i + 1) / count - microbatches * i / count;
    std::vector<std::size_t> cuts(layers - 1);
    std::iota(cuts.begin(), cuts.end(), std::size_t{1});
    std::shuffle(cuts.begin(), cuts.end(), random);
    cuts.resize(length - 1);
    cuts.push_back(layers);
    std::sort(cuts.begin(), cuts.end());
    if (i > 0 && random() % 2 == 0) {  // the cuts of the first one
      pipelines[i].stages = pipelines[0].stages;
      for (std::size_t k = 0; k < length; ++k) pipelines[i].stages[k].devices = {order[i * length + k]};
      continue;
    }
    std::size_t first = 0;
    for (std::size_t k = 0; k < length; ++k) {
      pipelines[i].stages.push_back({{order[i * length + k]}, first, cuts[k] - 1});
      first = cuts[k];
    }
  }
  if (count > 1 && pipelines[0].microbatches > 1) {
    --pipelines[0].microbatches;
    ++pipelines[1].microbatches;
  }
  return pipelines;
}

TEST(PipelineSteps, AreThoseThatPlayingFinds)
{
  std::mt19937_64 random(51);
  std::size_t exact = 0;
  std::size_t unfit = 0;
  std::size_t bounds = 0;
  std::size_t close = 0;  // of the bounds
  for (int round = 0; round < 1'500; ++round) {
    const std::size_t layers = 3 + random() % 6;
    Workload workload = random_chain(random, layers);
    workload.memory_model = random() % 8 == 0 ? MemoryModel::Sky : MemoryModel::Training;
    workload.optimizer = random() % 2 == 0 ? Optimizer::Adam : Optimizer::Sgd;
    if (random() % 3 == 0) workload.training.clip_norm = 1;
    for (auto& layer : workload.layers) layer.update = Flops(0.1);
    if (random() % 4 == 0) workload = with_random_recomputation(random, workload);
    Cluster cluster = random_cluster(random, 2 + random() % 7, 1e9);
    for (auto& device : cluster.devices) device.site = random() % 2 == 0 ? "a" : "b";
    const CostModel cost(workload, cluster);
    const char* schedules[] = {"1f1b", "gpipe", "sequential"};
    Plan plan;
    plan.goal = goal_under(schedules[round % 3], 4 + random() % 12);
    if (random() % 6 == 0) plan.goal.communication = Communication::None;
    plan.data_server = cluster.data_server;
    const auto pipelines = random_pipelines(random, cluster.devices.size(), layers, plan.goal.microbatches);
    plan.stages = stages_of(pipelines, chain_view(workload), cost, 1 + random() % 2);
    plan.sync.algorithm = random() % 2 == 0 ? Algorithm::Ring : Algorithm::Hierarchical;
    plan.sync.sharded = static_cast<Sharding>(random() % 4);
    if (plan.sync.sharded == Sharding::None && random() % 2 == 0) plan.sync.bucket = Bytes(20);
    const bool can_divide = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
      return !why_not_divided(plan.sync, stage, sites_of(stage, 0));
    });
    if (is_chain(plan) || !can_divide) continue;
    try {
      price_by_playing(plan, workload, cluster);
    } catch (const InputError&) {
      continue;  // replicas that would wait for each other
    }
    // Of every second plan one device lacks memory.
    const auto lacks = random() % 2 == 0 ? plan.predicted->peak_memory.end() : plan.predicted->peak_memory.begin();
    for (auto& device : cluster.devices) {
      const auto peak = plan.predicted->peak_memory.find(device.name);
      if (peak == plan.predicted->peak_memory.end()) continue;
      device.memory = peak == lacks ? 0.999 * peak->second : peak->second;
    }
    const bool fits = lacks == plan.predicted->peak_memory.end() || lacks->second.value == 0;
    SCOPED_TRACE(round);
    const auto found = PipelineSteps(CostModel(workload, cluster)).step_of(plan);
    ASSERT_TRUE(found);
    if (!found->is_exact) {
      ++bounds;
      ASSERT_TRUE(found->fits || !fits);
      if (!found->fits) continue;
      ASSERT_LE(found->step.value, plan.objective->value * (1 + 1e-12));
      if (found->step > 0.8 * *plan.objective) ++close;
      continue;
    }
    ASSERT_EQ(found->fits, fits);
    ++(fits ? exact : unfit);
    if (!fits) continue;
    ASSERT_NEAR(found->step.value, plan.objective->value, 1e-12 * plan.objective->value);
  }
  EXPECT_GT(exact, 200U);
  EXPECT_GT(unfit, 200U);
  EXPECT_GT(bounds, 100U);
  EXPECT_GT(close, bounds / 3);
}

TEST(PipelineSteps, AreUnknownForPlansOfAnotherKind)
{
  const Workload workload = chain({1, 1, 1, 1});
  const Cluster devices = cluster({1, 1, 1, 1});
  const CostModel cost(workload, devices);
  const PipelineSteps steps(cost);
  Plan plan;
  plan.goal = goal_under("1f1b", 4);
  plan.stages = {{0, 1, {{2, {{"d0"}}}, {2, {{"d1"}}}}}, {2, 3, {{2, {{"d2"}}}, {2, {{"d3"}}}}}};
  EXPECT_TRUE(steps.step_of(plan));
  Plan other = plan;
  other.goal = goal_under("zero-bubble-h1", 4);
  EXPECT_FALSE(steps.step_of(other));
  other = plan;
  other.stages[1].replicas = {{1, {{"d2"}}}, {3, {{"d3"}}}};
  EXPECT_FALSE(steps.step_of(other)) << "micro-batches change the pipeline";
  other.stages[1].replicas = {{0, {{"d2"}}}};
  EXPECT_FALSE(steps.step_of(other)) << "a stage with one replica after one with two";
  other = plan;
  other.stages[1].replicas = {{2, {{"d1"}}}, {2, {{"d0"}}}};
  EXPECT_FALSE(steps.step_of(other)) << "a device in two pipelines";
  other = plan;
  other.goal.microbatches = 65'536;
  other.stages.front().replicas = {{32'768, {{"d0"}}}, {32'768, {{"d1"}}}};
  other.stages.back().replicas = {{32'768, {{"d2"}}}, {32'768, {{"d3"}}}};
  EXPECT_TRUE(steps.step_of(other));
}

}  // namespace
}  // namespace isobar::allocators::pipeline_steps_test

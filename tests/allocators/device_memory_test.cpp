#include "allocators/planners/sharded_layers.hpp"
#include "allocators/played_plan.hpp"
#include "core/check/played_checker.hpp"
#include "core/model/layer_graph.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

// What a device with several stages needs: by the cost model, by the program of a plan, and by the checker.
namespace isobar::allocators::device_memory_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::IsEmpty;

/// The memory of each device under a plan by its program, which the checker confirms.
std::map<std::string, double> needs(Plan plan, const Workload& workload, const Cluster& cluster)
{
  plan.data_server = cluster.data_server;
  price_by_playing(plan, workload, cluster);
  EXPECT_THAT(faults_of_played(plan, workload, cluster, *schedules::make_program(plan, workload, cluster)), IsEmpty());
  std::map<std::string, double> needs;
  for (const auto& [device, memory] : plan.predicted->peak_memory) needs[device] = memory.value;
  return needs;
}

/// Stages of a pipeline, the first layer of each and the end, each with a replica on as many devices as there are
/// counts of micro-batches.
Plan pipelines(const std::vector<std::size_t>& cuts, const std::vector<std::uint64_t>& microbatches,
               const std::string& schedule)
{
  Plan plan;
  plan.goal = goal_under(schedule, 0);
  for (const std::uint64_t count : microbatches) plan.goal.microbatches += count;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    Stage stage{cuts[i], cuts[i + 1] - 1, {}};
    for (std::size_t k = 0; k < microbatches.size(); ++k) {
      const std::string device = "d" + std::to_string(i * microbatches.size() + k);
      stage.replicas.push_back({microbatches[k], {Shard{device}}});
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

/// The same plan with a part for each layer, or for layers that are cut apart at random.
Plan in_parts(
    const Plan& plan, const std::function<bool()>& is_cut = [] { return true; })
{
  Plan parts = plan;
  parts.stages.clear();
  for (const auto& stage : plan.stages) {
    Stage part = stage;
    for (std::size_t layer = stage.first_layer; layer < stage.last_layer; ++layer) {
      if (!is_cut()) continue;
      part.last_layer = layer;
      parts.stages.push_back(part);
      part.first_layer = layer + 1;
    }
    part.last_layer = stage.last_layer;
    parts.stages.push_back(part);
  }
  return parts;
}

TEST(MemoryOfADevice, IsThatOfItsStageHoweverManyPartsThatHas)
{
  std::mt19937_64 random(1);
  int cut = 0;
  for (int instance = 0; instance < 200; ++instance) {
    const std::size_t layers = 6 + random() % 5;
    const Workload workload = with_random_recomputation(random, random_chain(random, layers));
    Cluster devices = cluster(std::vector<double>(6, 1.0), {Seconds(0.01), BytesPerSecond(10)});
    if (instance % 3 == 0) devices.data_server = "data";
    const CostModel cost(workload, devices);
    const std::vector<std::size_t> cuts = {0, 1 + random() % 2, 3 + random() % 2, layers};
    const std::vector<std::uint64_t> taken = {1 + random() % 4, 1 + random() % 4};
    const bool is_gpipe = random() % 2 == 0;
    const Plan whole = pipelines(cuts, taken, is_gpipe ? "gpipe" : "1f1b");
    const Plan parts = in_parts(whole, [&] { return random() % 5 < 3; });
    if (parts.stages.size() == whole.stages.size()) continue;
    ++cut;
    const auto found = needs(parts, workload, devices);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t k = 0; k < taken.size(); ++k) {
        const auto schedule = is_gpipe ? ChainSchedule::GPipe : ChainSchedule::OneForwardOneBackward;
        const auto in_flight = microbatches_in_flight(schedule, 2 - i, taken[k]);
        const double formula = cost.memory(cuts[i], cuts[i + 1] - 1, in_flight).value;
        EXPECT_NEAR(found.at("d" + std::to_string(i * taken.size() + k)), formula, 1e-12 * formula);
      }
    }
  }
  EXPECT_GE(cut, 100);
}

TEST(MemoryOfADevice, HasOneWorkspaceForAllItsChunks)
{
  const Workload workload = with_recomputation(chain({1, 1, 1, 1}, 10, 1000, 100), {0, 1, 2, 3});
  EXPECT_EQ(workload.workspace, Bytes(1000));
  const Cluster devices = cluster({1, 1});
  const double layer = 10 * bytes_per_parameter(workload);
  const double buffer = 2 * 100;  // of a cut
  const auto need_on = [&](const std::vector<std::string>& names, const std::string& schedule) {
    Plan plan;
    plan.goal = goal_under(schedule, 2);
    for (std::size_t i = 0; i < names.size(); ++i) plan.stages.push_back(stage_on(names[i], i, i));
    return needs(plan, workload, devices);
  };
  const auto turns = need_on({"d0", "d1", "d0", "d1"}, "interleaved");
  // The inputs of two micro-batches in each chunk; the first layer, without an input, keeps nothing.
  EXPECT_DOUBLE_EQ(turns.at("d0"), 2 * layer + 2 * 100 + 3 * buffer + 1000);
  const auto there_and_back = need_on({"d0", "d1", "d1", "d0"}, "zero-bubble-v");
  EXPECT_DOUBLE_EQ(there_and_back.at("d1"), 2 * layer + 2 * (100 + 100) + 2 * buffer + 1000);
}

TEST(MemoryOfADevice, IsThatOfThePlannersWhereShardsDivideItsLayers)
{
  std::mt19937_64 random(2);
  for (int instance = 0; instance < 40; ++instance) {
    Workload workload = chain(std::vector<double>(6, 1.0), 64, 80, 10);
    for (auto& layer : workload.layers) layer.parameters += random() % 3 * 64;
    add_splits(random, workload);
    workload = with_random_recomputation(random, workload);
    const std::size_t shards = random() % 2 == 0 ? 2 : 4;
    const Cluster devices = cluster(std::vector<double>(2 * shards, 1.0));
    Plan plan;
    plan.goal = goal_under("1f1b", 4);
    for (std::size_t i = 0; i < 2; ++i) {
      Replica replica;
      for (std::size_t k = 0; k < shards; ++k) {
        replica.shards.push_back({"d" + std::to_string(i * shards + k), 1 / static_cast<double>(shards)});
      }
      plan.stages.push_back({3 * i, 3 * i + 2, {replica}});
    }
    plan.stages = by_layers(plan.stages);
    const auto found = needs(plan, workload, devices);
    const CostModel cost(workload, devices);
    const ShardedLayers layers(cost, shards);
    for (std::size_t i = 0; i < 2; ++i) {
      const double estimate = layers.memory(3 * i, 3 * i + 2, 2 - i).value;
      EXPECT_NEAR(found.at("d" + std::to_string(i * shards)), estimate, 1e-12 * estimate);
    }
  }
}

TEST(MemoryOfADevice, HasNoBuffersBetweenPartsWhoseParametersReplicasDivide)
{
  // 34 layers of 236 million parameters that keep and send 268 MB, on eight replicas that take a micro-batch each.
  Workload workload = chain(std::vector<double>(34, 4e12), 236'000'000, 268e6, 268e6);
  workload.optimizer = Optimizer::Adam;
  workload.dtype = DType::BFloat16;
  const Cluster devices = cluster(std::vector<double>(8, 312e12), {Seconds(1e-5), BytesPerSecond(300e9)}, 80e9);
  const auto need = [&](Sharding sharded) {
    Plan plan = in_parts(pipelines({0, 34}, std::vector<std::uint64_t>(8, 1), "1f1b"));
    EXPECT_EQ(plan.stages.size(), 34U);
    plan.sync.sharded = sharded;
    return needs(plan, workload, devices).at("d0");
  };
  const double parameters = 34 * 236e6;
  const double activations = 34 * 268e6;
  // In bf16 a parameter has 2 bytes, its gradient 2, and Adam's state with the master copy 12.
  EXPECT_DOUBLE_EQ(need(Sharding::Optimizer), parameters * (4 + 12.0 / 8) + activations);
  EXPECT_NEAR(need(Sharding::Parameters), parameters * 16 / 8 + activations, 1.5e9);  // and what is gathered of layers
}

TEST(MemoryOfADevice, GrowsByNoMoreThanOneWorkspaceWhereLayersRecompute)
{
  std::mt19937_64 random(3);
  int shrank = 0;
  for (int instance = 0; instance < 200; ++instance) {
    const std::size_t layers = 6 + random() % 5;
    Workload workload = random_chain(random, layers);
    workload.memory_model = MemoryModel::Training;
    const std::size_t shards = instance % 3 == 0 ? 2 : 1;
    if (shards > 1) {
      for (auto& layer : workload.layers) {
        layer.parameters *= 64;
        layer.activations += Bytes(2);  // a shard keeps a whole input, of 1 or less, in place of its part of these
      }
      add_splits(random, workload);
    }
    const Workload recomputing = with_random_recomputation(random, workload);
    const Cluster devices = cluster(std::vector<double>(6 * shards, 1.0), {Seconds(0.01), BytesPerSecond(10)});
    const std::vector<std::size_t> cuts = {0, 1 + random() % 2, 3 + random() % 2, layers};
    const std::string schedule = random() % 2 == 0 ? "gpipe" : "1f1b";
    Plan plan = pipelines(cuts, {1 + random() % 4, 1 + random() % 4}, schedule);
    if (shards > 1) {
      plan = in_parts(plan);
      for (auto& stage : plan.stages) {
        for (auto& replica : stage.replicas) {
          const std::string first = replica.shards.front().device;
          replica.shards = {Shard{first, 0.5}, Shard{"d" + std::to_string(6 + std::stoul(first.substr(1))), 0.5}};
        }
      }
    }
    const auto before = needs(plan, workload, devices);
    for (const auto& [device, need] : needs(plan, recomputing, devices)) {
      EXPECT_LE(need, (before.at(device) + recomputing.workspace.value) * (1 + 1e-12)) << instance << ": " << device;
      shrank += need < before.at(device) ? 1 : 0;
    }
  }
  EXPECT_GE(shrank, 100);
}

}  // namespace
}  // namespace isobar::allocators::device_memory_test

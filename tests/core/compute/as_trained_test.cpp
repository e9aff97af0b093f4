#include "core/compute/as_trained.hpp"

#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/measurements.hpp"
#include "core/compute/pricing.hpp"
#include "core/costs/layer_times.hpp"
#include "core/costs/shard_collective_times.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/system_rules.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::compute::as_trained_test {
namespace {

/// Devices of these types, all connected alike.
Cluster cluster_of(const std::vector<std::string>& types)
{
  Cluster cluster;
  cluster.name = "c";
  for (const auto& type : types) {
    Device& device = cluster.devices.emplace_back();
    device.name = std::string(1, static_cast<char>('a' + cluster.devices.size() - 1));
    device.type = type;
    device.speed = FlopsPerSecond(1e14);
    device.memory = Bytes(80e9);
  }
  cluster.network = MatrixNetwork::uniform(types.size(), {Seconds(1e-6), BytesPerSecond(1e11)});
  return cluster;
}

/// A gpt of 2 blocks, whose layers are halves of them: embedding, 4 halves, head.
Workload gpt(const std::string& framework, const Cluster& cluster, const std::string& more = "",
             const Measurements& measurements = {})
{
  Workload workload = workload_from_text(
      "model: gpt\nlayers: 2\nhidden: 1024\nheads: 16\nvocabulary: 1024\nsequence: 512\nmicro_batch: 2\ndtype: fp16\n"
      "optimizer: adam\nunit: operator\ncompute: operators\nframework: " +
          framework + "\n" + more,
      "gpt.yaml");
  price(workload, cluster, measurements);
  return workload;
}

Plan plan_of(std::vector<Stage> stages, const Workload& workload)
{
  Plan plan;
  plan.goal.microbatches = 4;
  plan.stages = std::move(stages);
  take_system(plan, workload);
  return plan;
}

Seconds time_of(const Workload& workload, std::size_t layer, const Device& device)
{
  const LayerTimes times = times_on(workload, layer, device);
  return times.forward + times.backward;
}

TEST(AsTrained, GivesEachDeviceTheTimesOfItsOwnLayers)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "V100-SXM2-32GB"});
  const Workload workload = gpt("composer-fsdp-2023", cluster);
  const Plan plan = plan_of({stage_on("a", 0, 1), stage_on("b", 2, 5)}, workload);
  const AsTrained trained(plan, workload, cluster);
  const Framework& framework = *framework_named("composer-fsdp-2023").framework;
  for (const auto& [device, first, last] : {std::tuple(0, 0, 1), std::tuple(1, 2, 5)}) {
    Seconds expected;
    Seconds found;
    const auto& own = trained.cluster().devices[static_cast<std::size_t>(device)];
    for (std::size_t layer = static_cast<std::size_t>(first); layer <= static_cast<std::size_t>(last); ++layer) {
      const auto time = layer_time(workload, layer, device_constants(own.type), framework);
      expected += time.forward.total() + time.backward.total();
      found += time_of(trained.workload(), layer, own);
    }
    EXPECT_NEAR(found.value, expected.value, 1e-12 * expected.value) << own.type;
  }
}

TEST(AsTrained, GivesDevicesOfOneStageThePassesOfTheirOwnTypes)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "V100-SXM2-32GB"});
  const Workload workload = gpt("megatron-lm-2021", cluster);
  cluster.devices[1].pace = 0.5;  // half as fast as its type
  Stage replicas = stage_on("a", 0, 5);
  replicas.replicas = {{2, {Shard{"a"}}}, {2, {Shard{"b"}}}};
  Stage shards = stage_on("a", 3, 3);
  shards.replicas = {{0, {Shard{"a", 0.5}, Shard{"b", 0.5}}}};
  const Framework& framework = *framework_named("megatron-lm-2021").framework;
  for (const Stage& stage : {replicas, shards}) {
    const Plan plan = plan_of({stage}, workload);
    const AsTrained trained(plan, workload, cluster);
    LayerDivision division{stage.replicas.front().shards.size()};
    if (division.shards > 1) {
      const auto collectives = shard_collective_times(plan, 0, 3, workload, cluster);
      division.forward_collectives = collectives.forward;
      division.backward_collectives = collectives.backward;
    }
    for (const Device& device : trained.cluster().devices) {
      const auto expected = layer_time(workload, 3, device_constants(device.type), framework, division);
      const LayerTimes own = times_of_shard(trained.workload(), 3, device, stage, 0, 0);
      const double slower = device.name == "b" ? 2 : 1;
      EXPECT_NEAR(own.forward.value, slower * (expected.forward.total() - expected.hidden_forward).value, 1e-12);
      EXPECT_NEAR(own.backward.value, slower * (expected.backward.total() - expected.hidden_backward).value, 1e-12);
      EXPECT_NEAR(own.backward_weight.value, slower * expected.backward_weight.value, 1e-12);
    }
  }
}

TEST(AsTrained, AddsTheHostAndSerialReceivesOfAPipeline)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "A100-SXM4-80GB"});
  const Workload workload = gpt("megatron-deepspeed-2024", cluster);
  const Framework& framework = *framework_named("megatron-deepspeed-2024").framework;
  const Plan one = plan_of({stage_on("a", 0, 5)}, workload);
  const Plan two = plan_of({stage_on("a", 0, 2), stage_on("b", 3, 5)}, workload);
  const AsTrained alone(one, workload, cluster);
  const AsTrained apart(two, workload, cluster);
  const auto more = [&](std::size_t layer, Seconds ShardTimes::*pass) {
    return (times_on(apart.workload(), layer, cluster.devices[0]).*pass -
            times_on(alone.workload(), layer, cluster.devices[0]).*pass)
        .value;
  };
  const double arrival = cluster.path(0, 1).transfer_time(workload.layers[2].output).value;
  EXPECT_NEAR(more(0, &ShardTimes::forward), framework.pipeline_host.value, 1e-12);
  EXPECT_NEAR(more(3, &ShardTimes::forward), framework.pipeline_host.value + arrival, 1e-12);
  EXPECT_NEAR(more(2, &ShardTimes::backward), arrival, 1e-12);
  EXPECT_NEAR(apart.parts()[1].pipeline.value, arrival, 1e-12);
}

TEST(AsTrained, RebuildsActivationsThatArriveInSlices)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM4-80GB"});
  const auto pipeline = [&](const std::string& more) {
    const Workload workload = gpt("megatron-deepspeed-2024", cluster, more);
    std::vector<Stage> stages;
    for (std::size_t layer = 0; layer < 6; ++layer) {
      Stage stage = stage_on("a", layer, layer);
      const bool is_first = layer < 3;
      stage.replicas = {
          {4,
           {Shard{.device = is_first ? "a" : "c", .share = 0.5}, Shard{.device = is_first ? "b" : "d", .share = 0.5}}}};
      stages.push_back(std::move(stage));
    }
    const Plan plan = plan_of(std::move(stages), workload);
    EXPECT_TRUE(plan.transfers.sliced);
    return AsTrained(plan, workload, cluster).parts()[3].pipeline.value;
  };
  const Framework& framework = *framework_named("megatron-deepspeed-2024").framework;
  const double bytes = 2.0 * 2 * 512 * 1024;
  const double slices = cluster.path(0, 2).transfer_time(Bytes(bytes / 2)).value;
  // A gather takes half of an all-reduce of two: half of the bytes each way.
  const double gather = cluster.path(2, 3).transfer_time(Bytes(bytes / 2)).value;
  EXPECT_NEAR(pipeline(""), slices + bytes / 1e9 * framework.rebuild + gather, 1e-9);
  EXPECT_GT(framework.rebuild, 0);
}

/// A profile of two shards of the gpt, in which every pass of a layer takes these seconds.
Measurements profile_of(double forward, double backward)
{
  const testing_support::TemporaryFolder folder;
  std::string layers;
  for (int layer = 0; layer < 4; ++layer) {
    layers += fmt::format("{}\"{}\": [{}, {}, 1e-6]", layer == 0 ? "" : ", ", layer, forward, backward);
  }
  const auto file = folder.write("OPT_A100-SXM4-80GB.json", fmt::format("{{\"2\": {{\"2\": {{{}}}}}}}", layers));
  return Measurements({file.string()});
}

/// A plan of two shards, a and b, with a stage for each layer.
Plan plan_of_two_shards(const Workload& workload)
{
  std::vector<Stage> stages;
  for (std::size_t layer = 0; layer < 6; ++layer) {
    Stage& stage = stages.emplace_back(stage_on("a", layer, layer));
    stage.replicas = {{4, {Shard{"a", 0.5}, Shard{"b", 0.5}}}};
  }
  return plan_of(std::move(stages), workload);
}

/// What the passes of a layer take with its collectives, as trained.
std::pair<double, double> passes_with_collectives(const Plan& plan, const AsTrained& trained, std::size_t layer)
{
  const auto collectives = shard_collective_times(plan, layer, layer, trained.workload(), trained.cluster());
  const LayerTimes shard =
      times_of_shard(trained.workload(), layer, trained.cluster().devices[0], plan.stages[layer], 0, 0);
  return {(shard.forward + collectives.forward).value, (shard.backward + collectives.backward).value};
}

TEST(AsTrained, KeepsTheTimesOfAProfileWithTheCollectivesThatItHas)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM4-80GB"});
  // An all-reduce of 2 MB over 100 GB/s takes 23 us. Half a block takes half of the profile's block.
  for (const auto& [forward, backward] : {std::pair(100e-6, 200e-6), {30e-6, 60e-6}, {20e-6, 200e-6}}) {
    const Workload workload = gpt("megatron-lm-2021", cluster, "", profile_of(forward, backward));
    const Plan plan = plan_of_two_shards(workload);
    const AsTrained trained(plan, workload, cluster);
    const auto found = passes_with_collectives(plan, trained, 1);
    constexpr double byte = 1e-10;  // a message has one at least
    EXPECT_NEAR(found.first, forward / 2, byte);
    EXPECT_NEAR(found.second, backward / 2, byte);
    const double part = trained.workload().layers[1].split->exchanged_fraction;
    EXPECT_EQ(part < 1, forward < 40e-6) << part;
  }
}

TEST(AsTrained, PlaysCollectivesOfShardsThatAreFartherApartThanNeighboursAtTheirFullSize)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM4-80GB"});
  std::vector<Path> paths(9, {Seconds(1e-6), BytesPerSecond(1e10)});
  paths[2] = paths[6] = {Seconds(1e-6), BytesPerSecond(1e11)};  // between a and c
  cluster.network = std::make_shared<MatrixNetwork>(3, paths);
  const Workload workload = gpt("megatron-lm-2021", cluster, "", profile_of(30e-6, 60e-6));
  const Plan plan = plan_of_two_shards(workload);
  const AsTrained trained(plan, workload, cluster);
  EXPECT_EQ(trained.workload().layers[1].split->exchanged_fraction, 1);
  EXPECT_GT(passes_with_collectives(plan, trained, 1).first, 200e-6);
}

TEST(AsTrained, CountsMemoryByTheSystemOnce)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB"});
  const Workload workload = gpt("megatron-lm-2022", cluster);
  const Plan plan = plan_of({stage_on("a", 0, 5)}, workload);
  const AsTrained trained(plan, workload, cluster);
  const Framework& framework = *framework_named("megatron-lm-2022").framework;
  EXPECT_EQ(trained.workload().memory_model, MemoryModel::System);
  EXPECT_EQ(trained.workload().workspace, framework.memory.context);
  EXPECT_EQ(bytes_per_parameter(trained.workload()), 18);
  const auto head = layer_memory(workload, 5, framework);
  EXPECT_EQ(trained.workload().layers[5].workspace, head.workspace);
}

TEST(AsTrained, LeavesPlansWithoutASystemAsTheyAre)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB"});
  const Workload workload = gpt("megatron-lm-2022", cluster);
  Plan plan = plan_of({stage_on("a", 0, 5)}, workload);
  plan.system.reset();
  const AsTrained trained(plan, workload, cluster);
  EXPECT_EQ(&trained.workload(), &workload);
  EXPECT_EQ(&trained.cluster(), &cluster);
  EXPECT_TRUE(trained.parts().empty());
}

TEST(AsTrained, ScalesPassesToTheSamplesOfAStep)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB"});
  const Workload workload = gpt("composer-fsdp-2023", cluster);
  Plan plan = plan_of({stage_on("a", 0, 5)}, workload);
  const AsTrained whole(plan, workload, cluster);
  plan.samples = 6;  // of 4 micro-batches of 2
  const AsTrained smaller(plan, workload, cluster);
  for (std::size_t layer = 0; layer < 6; ++layer) {
    const double all = times_on(whole.workload(), layer, cluster.devices[0]).forward.value;
    EXPECT_NEAR(times_on(smaller.workload(), layer, cluster.devices[0]).forward.value, 0.75 * all, 1e-6 * all);
  }
}

TEST(TakeSystem, SetsTheRulesOfTheSoftware)
{
  Cluster cluster = cluster_of({"A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM4-80GB"});
  Stage replicated = stage_on("a", 0, 5);
  replicated.replicas = {{2, {Shard{.device = "a"}}}, {2, {Shard{.device = "b"}}}};
  const Plan megatron = plan_of({replicated}, gpt("megatron-lm-2021", cluster));
  EXPECT_EQ(megatron.system, TrainingSystem{"megatron-lm-2021"});
  EXPECT_EQ(megatron.sync.summed, DType::Float16);
  EXPECT_EQ(megatron.sync.bucket, Bytes(0)) << "sums go beside the backward pass where there is no pipeline";
  EXPECT_FALSE(megatron.transfers.blocking);
  EXPECT_EQ(plan_of({replicated}, gpt("megatron-deepspeed-2023", cluster)).sync.bucket, one_bucket);

  const Plan pipeline = plan_of({stage_on("a", 0, 2), stage_on("b", 3, 5)}, gpt("megatron-lm-2021", cluster));
  EXPECT_TRUE(pipeline.transfers.blocking);
  EXPECT_FALSE(pipeline.transfers.sliced) << "there is one shard";

  replicated.replicas = {{4, {Shard{.device = "a"}}}};
  Plan fsdp = plan_of({replicated}, gpt("composer-fsdp-2023", cluster));
  EXPECT_EQ(fsdp.sync, Sync()) << "one replica adds up nothing";
  EXPECT_EQ(most_divided(gpt("composer-fsdp-2023", cluster)), Sharding::Parameters);
  EXPECT_EQ(most_divided(gpt("megatron-lm-2021", cluster)), Sharding::None);
}

}  // namespace
}  // namespace isobar::compute::as_trained_test

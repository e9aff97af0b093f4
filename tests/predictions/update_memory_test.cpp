#include "core/compute/as_trained.hpp"
#include "core/compute/pricing.hpp"
#include "core/plan/placed_shards.hpp"
#include "tests/predictions/predicted.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

// What a training system holds while it updates alone.
namespace isobar::predictions::update_memory_test {
namespace {

/// The memory of a device that trains a gpt with DeepSpeed.
struct Needs {
  double peak = 0;
  double resident = 0;
  double parameters = 0;
};

Needs needs_of(const std::string& sizes, Sharding sharded, std::size_t replicas,
               const std::string& framework = "megatron-deepspeed-2023")
{
  Cluster cluster;
  Stage stage = stage_on("a", 0, 5);
  stage.replicas.clear();
  for (std::size_t i = 0; i < replicas; ++i) {
    Device& device = cluster.devices.emplace_back();
    device.name = std::string(1, static_cast<char>('a' + i));
    device.type = "A100-SXM4-80GB";
    device.memory = Bytes(80e9);
    stage.replicas.push_back({1, {Shard{device.name}}});
  }
  cluster.network = MatrixNetwork::uniform(replicas, {Seconds(1e-6), BytesPerSecond(1e11)});
  Workload workload = workload_from_text(
      "model: gpt\nlayers: 2\nheads: 16\nvocabulary: 1024\ndtype: fp16\noptimizer: adam\nunit: operator\n"
      "compute: operators\nframework: " +
          framework + "\n" + sizes,
      "gpt.yaml");
  compute::price(workload, cluster);
  Plan plan;
  plan.goal.microbatches = replicas;
  plan.stages = {stage};
  plan.sync.sharded = sharded;
  compute::take_system(plan, workload);
  predict(plan, workload, cluster);
  const compute::AsTrained trained(plan, workload, cluster);
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  EXPECT_EQ(faults_of_played(plan, trained.workload(), trained.cluster(), *program), std::vector<std::string>{});
  Needs needs;
  needs.peak = plan.predicted->peak_memory.at("a").value;
  needs.resident = program->resident(0, Tier::Device).value;
  for (const auto& layer : workload.layers) needs.parameters += static_cast<double>(layer.parameters);
  return needs;
}

constexpr auto wide = "hidden: 2048\nsequence: 16\nmicro_batch: 1\n";       // parameters need more than activations
constexpr auto long_one = "hidden: 256\nsequence: 4096\nmicro_batch: 2\n";  // and the other way round

TEST(UpdateMemory, IsNeededWhereActivationsTakeLess)
{
  const Needs needs = needs_of(wide, Sharding::None, 1);
  EXPECT_NEAR(needs.peak, needs.resident + 4 * needs.parameters, 1);
  EXPECT_GT(needs.resident, 16 * needs.parameters);
}

TEST(UpdateMemory, IsThatOfActivationsWhereTheyTakeMore)
{
  const Needs needs = needs_of(long_one, Sharding::None, 1);
  EXPECT_GT(needs.peak, needs.resident + 8 * needs.parameters);
  const auto more = R"({name: megatron-deepspeed, version: "2023", memory_update_bytes_16bit: 8})";
  EXPECT_EQ(needs_of(long_one, Sharding::None, 1, more).peak, needs.peak);
}

TEST(UpdateMemory, IsDividedAmongReplicasThatDivideTheUpdate)
{
  const Needs needs = needs_of(wide, Sharding::Optimizer, 2);
  EXPECT_NEAR(needs.peak, needs.resident + 2 * needs.parameters, 1);
}

}  // namespace
}  // namespace isobar::predictions::update_memory_test

#include "core/compute/pricing.hpp"

#include "core/compute/device_constants.hpp"
#include "core/compute/layer_time.hpp"
#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"
#include "core/model/framework.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace isobar::compute::pricing_constants_test {
namespace {

using testing::StartsWith;

constexpr auto reference = "A100-SXM4-80GB";
constexpr auto other = "V100-SXM2-32GB";
constexpr auto software = "megatron-lm-2022";

Workload gpt(const std::string& more = "compute: operators\nframework: megatron-lm-2022\n")
{
  return workload_from_text(
      "model: gpt\nlayers: 4\nhidden: 2048\nheads: 16\nvocabulary: 51200\nsequence: 1024\nmicro_batch: 2\n"
      "dtype: fp16\noptimizer: adam\nunit: operator\n" +
          more,
      "gpt.yaml");
}

Cluster cluster_of(const std::vector<std::string>& types)
{
  Cluster cluster;
  for (const auto& type : types) {
    Device& device = cluster.devices.emplace_back();
    device.name = "d" + std::to_string(cluster.devices.size());
    device.type = type;
  }
  return cluster;
}

using Speeds = std::map<std::string, FlopsPerSecond>;

Speeds speeds_of(Workload& workload, const std::vector<std::string>& types)
{
  Speeds speeds;
  price(workload, cluster_of(types), [&](const std::string& type, FlopsPerSecond speed) {
    EXPECT_FALSE(speeds.contains(type)) << type << " is set twice";
    speeds[type] = speed;
  });
  return speeds;
}

LayerTime time_on(const Workload& workload, std::size_t layer, const char* type, std::size_t shards = 1)
{
  return layer_time(workload, layer, device_constants(type), *framework_named(software).framework, {shards});
}

Seconds all_on(const Workload& workload, const char* type)
{
  Seconds sum;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const LayerTime time = time_on(workload, layer, type);
    sum += time.forward.total() + time.backward.total();
  }
  return sum;
}

Flops work_of(const Workload& workload)
{
  Flops sum;
  for (const auto& layer : workload.layers) sum += layer.forward + layer.backward;
  return sum;
}

/// Fails unless layers of this workload take on the reference what the model of operators says of one without prices.
void expect_times(const Workload& priced, const Workload& plain, FlopsPerSecond speed)
{
  ASSERT_EQ(priced.layers.size(), plain.layers.size());
  for (std::size_t i = 0; i < priced.layers.size(); ++i) {
    const Layer& layer = priced.layers[i];
    const LayerTime time = time_on(plain, i, reference);
    EXPECT_NEAR((layer.forward / speed).value, time.forward.total().value, 1e-12) << layer.name;
    EXPECT_NEAR((layer.backward / speed).value, time.backward.total().value, 1e-12) << layer.name;
    EXPECT_NEAR((layer.backward_weight / speed).value, time.backward_weight.value, 1e-12) << layer.name;
  }
}

TEST(Pricing, LetsLayersTakeTheirTimesOnTheTypeOfTheFirstDevice)
{
  const Workload plain = gpt();
  Workload workload = plain;
  const Speeds speeds = speeds_of(workload, {reference, reference});
  ASSERT_EQ(speeds.size(), 1U);
  expect_times(workload, plain, speeds.at(reference));
  const Framework& framework = *framework_named(software).framework;
  for (const auto& layer : workload.layers) {
    ASSERT_TRUE(layer.update.has_value()) << layer.name;
    const Seconds update = update_time(static_cast<double>(layer.parameters), device_constants(reference), framework);
    EXPECT_NEAR((*layer.update / speeds.at(reference)).value, update.value, 1e-12) << layer.name;
  }
}

TEST(Pricing, GivesATypeTheFlopsOfAllLayersOverTheirTimeOnIt)
{
  const Workload plain = gpt();
  Workload workload = plain;
  const Speeds speeds = speeds_of(workload, {reference, other, reference, other});
  ASSERT_EQ(speeds.size(), 2U);
  for (const char* type : {reference, other}) {
    EXPECT_NEAR((work_of(plain) / speeds.at(type)).value, all_on(plain, type).value, 1e-12) << type;
    EXPECT_NEAR((work_of(workload) / speeds.at(type)).value, all_on(plain, type).value, 1e-12) << type;
  }
  EXPECT_LT(speeds.at(other), speeds.at(reference));
  // Layers take their own times on each type, whose work is not in proportion.
  Cluster cluster = cluster_of({reference, other});
  for (auto& device : cluster.devices) device.speed = speeds.at(device.type);
  const CostModel cost(workload, cluster);
  for (std::size_t layer = 0; layer < plain.layers.size(); ++layer) {
    for (const std::size_t device : {0, 1}) {
      const LayerTime time = time_on(plain, layer, device == 0 ? reference : other);
      EXPECT_NEAR(cost.forward_time(device, layer, layer).value, time.forward.total().value, 1e-12) << layer;
      EXPECT_NEAR(cost.backward_time(device, layer, layer).value, time.backward.total().value, 1e-12) << layer;
      EXPECT_NEAR(cost.weight_time(device, layer).value, time.backward_weight.value, 1e-12) << layer;
    }
  }
  // In the other order, layers have the proportions of the other type.
  Workload of_other = plain;
  const Speeds same = speeds_of(of_other, {other, reference});
  EXPECT_EQ(same, speeds);
  EXPECT_NEAR((of_other.layers[1].forward / same.at(other)).value, time_on(plain, 1, other).forward.total().value,
              1e-12);
}

TEST(Pricing, KnowsTheWorkOfEqualShardsAsFarAsLayersHaveUnits)
{
  const Workload plain = gpt();
  Workload workload = plain;
  const FlopsPerSecond speed = speeds_of(workload, {reference}).at(reference);
  std::vector<std::size_t> counts;
  for (const auto& [shards, work] : workload.layers[1].work_of_shards) {
    counts.push_back(shards);
    const LayerTime time = time_on(plain, 1, reference, shards);
    EXPECT_NEAR((work.forward / speed).value, time.forward.total().value, 1e-12) << shards;
    EXPECT_NEAR((work.backward / speed).value, time.backward.total().value, 1e-12) << shards;
    EXPECT_NEAR((work.backward_weight / speed).value, time.backward_weight.value, 1e-12) << shards;
  }
  EXPECT_EQ(counts, (std::vector<std::size_t>{2, 4, 8, 16}));  // of 16 heads
  EXPECT_GT(workload.layers[1].work_of_shards.at(2).forward, 0.5 * workload.layers[1].forward);
  EXPECT_EQ(workload.layers[2].work_of_shards.rbegin()->first, 64U);  // of columns
}

TEST(Pricing, IsAppliedAgainToOtherMicroBatchesAndRecomputation)
{
  const Workload plain = gpt();
  Workload workload = plain;
  const FlopsPerSecond speed = speeds_of(workload, {reference}).at(reference);
  expect_times(with_micro_batch(workload, 8), with_micro_batch(plain, 8), speed);
  const std::vector<std::size_t> blocks = {1, 2, 5, 6};
  const Workload recomputing = with_recomputation(workload, blocks);
  expect_times(recomputing, with_recomputation(plain, blocks), speed);
  expect_times(with_micro_batch(recomputing, 4), with_micro_batch(with_recomputation(plain, blocks), 4), speed);
  EXPECT_GT(recomputing.layers[1].backward, workload.layers[1].backward);
  EXPECT_EQ(recomputing.layers[3].backward, workload.layers[3].backward);
  // Small micro-batches take more than their part.
  EXPECT_GT(4.0 * with_micro_batch(workload, 1).layers[1].forward, with_micro_batch(workload, 4).layers[1].forward);
}

TEST(Pricing, LeavesWorkloadsOfRatesAsTheyAre)
{
  const Workload plain = gpt("");
  Workload workload = plain;
  EXPECT_TRUE(speeds_of(workload, {"a type without constants"}).empty());
  EXPECT_EQ(workload.prices, nullptr);
  EXPECT_EQ(workload.layers[1].forward, plain.layers[1].forward);
  EXPECT_TRUE(workload.layers[1].work_of_shards.empty());
}

TEST(Pricing, RefusesWhatHasNoConstants)
{
  const auto fault_of = [](const std::string& more, const std::vector<std::string>& types) {
    return message_of([&] {
      Workload workload = gpt(more);
      speeds_of(workload, types);
    });
  };
  EXPECT_THAT(
      fault_of("compute: operators\n", {reference}),
      StartsWith(
          "InputError gpt.yaml:1: framework: missing; compute: operators takes the constants of one: aceso-2024, "));
  EXPECT_THAT(fault_of("compute: operators\nframework: pax\n", {reference}),
              StartsWith("InputError gpt.yaml:12: framework: \"pax\" is unknown; write one of aceso-2024, "));
  EXPECT_THAT(
      fault_of("compute: operators\nframework: megatron-lm-2022\n", {reference, "A100-SXM-80GB"}),
      StartsWith(
          "InputError device A100-SXM-80GB: has no constants; did you mean A100-SXM4-80GB? (for another type, "));
  EXPECT_EQ(fault_of("compute: operators\nframework: megatron-lm-2022\n", {"", reference}),
            "InputError : d1: has no device type, whose constants compute: operators takes; give it a prop device, or "
            "write compute: rate");
}

}  // namespace
}  // namespace isobar::compute::pricing_constants_test

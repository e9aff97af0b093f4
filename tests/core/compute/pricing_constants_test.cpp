#include "core/compute/pricing.hpp"

#include "core/compute/device_constants.hpp"
#include "core/compute/layer_time.hpp"
#include "core/costs/cost_model.hpp"
#include "core/costs/layer_times.hpp"
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

Workload priced(Workload workload, const std::vector<std::string>& types)
{
  price(workload, cluster_of(types));
  return workload;
}

LayerTime time_on(const Workload& workload, std::size_t layer, const char* type, std::size_t shards = 1)
{
  return layer_time(workload, layer, device_constants(type), *framework_named(software).framework, {shards});
}

/// Fails unless layers of this workload take on the reference what the model of operators says of one without prices.
void expect_times(const Workload& priced, const Workload& plain)
{
  ASSERT_EQ(priced.layers.size(), plain.layers.size());
  for (std::size_t i = 0; i < priced.layers.size(); ++i) {
    const LayerTimes& own = priced.times.at(reference)[i];
    const LayerTime time = time_on(plain, i, reference);
    EXPECT_EQ(own.forward, time.forward.total()) << i;
    EXPECT_EQ(own.backward, time.backward.total()) << i;
    EXPECT_EQ(own.backward_weight, time.backward_weight) << i;
    EXPECT_EQ(priced.layers[i].forward, plain.layers[i].forward) << i;
    EXPECT_EQ(priced.layers[i].backward, plain.layers[i].backward) << i;
  }
}

TEST(Pricing, LetsLayersTakeTheirTimesAndKeepTheirFlops)
{
  const Workload plain = gpt();
  const Workload workload = priced(plain, {reference, reference});
  ASSERT_EQ(workload.times.size(), 1U);
  expect_times(workload, plain);
  const Framework& framework = *framework_named(software).framework;
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const auto parameters = static_cast<double>(workload.layers[i].parameters);
    EXPECT_EQ(workload.times.at(reference)[i].update, update_time(parameters, device_constants(reference), framework));
  }
}

TEST(Pricing, GivesEachTypeItsOwnTimes)
{
  const Workload plain = gpt();
  for (const bool is_first : {true, false}) {
    const std::vector<std::string> types = is_first ? std::vector<std::string>{reference, other, reference, other}
                                                    : std::vector<std::string>{other, reference};
    const Workload workload = priced(plain, types);
    ASSERT_EQ(workload.times.size(), 2U);
    const Cluster cluster = cluster_of(types);
    const CostModel cost(workload, cluster);
    for (std::size_t layer = 0; layer < plain.layers.size(); ++layer) {
      for (const std::size_t device : {0, 1}) {
        const LayerTime time = time_on(plain, layer, types[device].c_str());
        EXPECT_NEAR(cost.forward_time(device, layer, layer).value, time.forward.total().value, 1e-12) << layer;
        EXPECT_NEAR(cost.backward_time(device, layer, layer).value, time.backward.total().value, 1e-12) << layer;
        EXPECT_NEAR(cost.weight_time(device, layer).value, time.backward_weight.value, 1e-12) << layer;
        // No pass of a layer takes less than its work over the largest rate.
        const double least = cost.layer_work(layer).forward.value / cost.speed(device).value;
        EXPECT_LE(least, time.forward.total().value * (1 + 1e-12)) << layer;
      }
    }
  }
}

TEST(Pricing, DevicesTakeTheTimesOfTheirTypeAtTheirPace)
{
  const Workload workload = priced(gpt(), {reference, other});
  Cluster cluster = cluster_of({reference, other});
  for (auto& device : cluster.devices) device.speed = FlopsPerSecond(3);  // which counts where no times are known
  const Cluster at_pace = cluster;
  const CostModel usual(workload, at_pace);
  for (auto& device : cluster.devices) device.pace = 0.25;
  const CostModel slower(workload, cluster);
  for (const std::size_t device : {0, 1}) {
    EXPECT_DOUBLE_EQ(slower.forward_time(device, 0, 3).value, 4 * usual.forward_time(device, 0, 3).value);
    EXPECT_DOUBLE_EQ(slower.weight_time(device, 1).value, 4 * usual.weight_time(device, 1).value);
    EXPECT_DOUBLE_EQ(slower.update_time(device, 0, 3).value, 4 * usual.update_time(device, 0, 3).value);
    EXPECT_DOUBLE_EQ(slower.speed(device).value, usual.speed(device).value / 4);
    const LayerTimes whole = times_on(workload, 1, cluster.devices[device]);
    const ShardTimes& of_type = workload.times.at(cluster.devices[device].type)[1].of_shards.at(2);
    EXPECT_DOUBLE_EQ(whole.of_shards.at(2).forward.value, 4 * of_type.forward.value);
  }
}

TEST(Pricing, KnowsTheTimesOfEqualShardsAsFarAsLayersHaveUnits)
{
  const Workload plain = gpt();
  const Workload workload = priced(plain, {reference});
  const auto& times = workload.times.at(reference);
  std::vector<std::size_t> counts;
  for (const auto& [shards, own] : times[1].of_shards) {
    counts.push_back(shards);
    const LayerTime time = time_on(plain, 1, reference, shards);
    EXPECT_EQ(own.forward, time.forward.total()) << shards;
    EXPECT_EQ(own.backward, time.backward.total()) << shards;
    EXPECT_EQ(own.backward_weight, time.backward_weight) << shards;
  }
  EXPECT_EQ(counts, (std::vector<std::size_t>{2, 4, 8, 16}));  // of 16 heads
  EXPECT_GT(times[1].of_shards.at(2).forward, 0.5 * times[1].forward);
  EXPECT_EQ(times[2].of_shards.rbegin()->first, 64U);  // of columns
}

TEST(Pricing, IsAppliedAgainToOtherMicroBatchesAndRecomputation)
{
  const Workload plain = gpt();
  const Workload workload = priced(plain, {reference});
  expect_times(with_micro_batch(workload, 8), with_micro_batch(plain, 8));
  const std::vector<std::size_t> blocks = {1, 2, 5, 6};
  const Workload recomputing = with_recomputation(workload, blocks);
  expect_times(recomputing, with_recomputation(plain, blocks));
  expect_times(with_micro_batch(recomputing, 4), with_micro_batch(with_recomputation(plain, blocks), 4));
  const auto time_of = [](const Workload& own, std::size_t layer) { return own.times.at(reference)[layer]; };
  EXPECT_GT(time_of(recomputing, 1).backward, time_of(workload, 1).backward);
  EXPECT_EQ(time_of(recomputing, 3).backward, time_of(workload, 3).backward);
  // Small micro-batches take more than their part.
  EXPECT_GT(4.0 * time_of(with_micro_batch(workload, 1), 1).forward, time_of(with_micro_batch(workload, 4), 1).forward);
}

TEST(Pricing, LeavesWorkloadsOfRatesAsTheyAre)
{
  const Workload plain = gpt("");
  const Workload workload = priced(plain, {"a type without constants"});
  EXPECT_EQ(workload.prices, nullptr);
  EXPECT_EQ(workload.layers[1].forward, plain.layers[1].forward);
  EXPECT_TRUE(workload.times.empty());
}

TEST(Pricing, RefusesWhatHasNoConstants)
{
  const auto fault_of = [](const std::string& more, const std::vector<std::string>& types) {
    return message_of([&] { priced(gpt(more), types); });
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

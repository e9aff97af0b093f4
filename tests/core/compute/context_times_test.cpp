#include "core/compute/as_trained.hpp"
#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/pricing.hpp"
#include "core/costs/exchange_times.hpp"
#include "core/costs/layer_times.hpp"
#include "tests/support/contexts.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

// What layers take and hold on devices that divide sequences.
namespace isobar::compute::context_times_test {
namespace {

using testing_support::ContextShape;
using testing_support::names_for;
using testing_support::plan_in_parts;
using testing_support::small_llama;

constexpr std::size_t attention = 1;
constexpr double tolerance = 1e-9;

const Framework& framework()
{
  return *find_framework("megatron-core-0.8");
}

/// Devices of one type, all connected alike.
Cluster cluster_of(const ContextShape& shape, BytesPerSecond bandwidth)
{
  Cluster cluster;
  cluster.name = "c";
  for (const auto& name : names_for(shape)) {
    Device& device = cluster.devices.emplace_back();
    device.name = name;
    device.type = "A100-SXM4-80GB";
    device.memory = Bytes(80e9);
  }
  cluster.network = MatrixNetwork::uniform(shape.devices(), {Seconds(0), bandwidth});
  return cluster;
}

Workload priced(Workload workload, const Cluster& cluster)
{
  price(workload, cluster);
  return workload;
}

TEST(LayerTime, OfAPartHasItsPartOfTheScores)
{
  const DeviceConstants device = device_constants("A100-SXM4-80GB");
  const Workload whole = small_llama();
  const auto all = layer_time(whole, attention, device, framework());
  for (const std::size_t degree : {2, 4}) {
    const auto c = static_cast<double>(degree);
    const Workload part = with_context(whole, {degree, ContextExchange::AllToAll});
    const auto own = layer_time(part, attention, device, framework());
    EXPECT_NEAR(c * own.forward.attention.value, all.forward.attention.value, tolerance * all.forward.attention.value);
    EXPECT_NEAR(c * own.backward.attention.value, all.backward.attention.value,
                tolerance * all.backward.attention.value);
    EXPECT_NEAR(c * own.forward.memory_bound.value, all.forward.memory_bound.value,
                tolerance * all.forward.memory_bound.value);
    EXPECT_GT(c * own.forward.products.value, all.forward.products.value) << "smaller products are less efficient";
  }
}

TEST(LayerMemory, OfAPartIsItsPart)
{
  const Workload whole = small_llama();
  const Workload part = with_context(whole, {4, ContextExchange::Ring});
  for (std::size_t layer = 0; layer < whole.layers.size(); ++layer) {
    const auto all = layer_memory(whole, layer, framework());
    const auto own = layer_memory(part, layer, framework());
    EXPECT_NEAR(4 * own.kept.value, all.kept.value, tolerance * all.kept.value);
    EXPECT_NEAR(4 * own.workspace.value, all.workspace.value, tolerance * all.workspace.value);
  }
}

// A ring of c parts takes c - 1 steps of the longer of a step's attention and transfer, and the last part's attention.
TEST(AsTrained, LetsEachStepOfARingTakeTheLongerOfAttentionAndTransfer)
{
  constexpr double c = 4;
  const ContextShape shape{1, 1, 1, {4, ContextExchange::Ring}};
  for (const double bandwidth : {1e13, 3e10, 1e9}) {
    for (const bool recomputes : {false, true}) {
      Cluster cluster = cluster_of(shape, BytesPerSecond(bandwidth));
      Workload whole = recomputes ? with_recomputation(small_llama(), {1, 2, 3, 4}) : small_llama();
      const Workload part = priced(with_context(whole, shape.context), cluster);
      Plan plan = plan_in_parts(shape, part.layers.size(), 1, names_for(shape));
      take_system(plan, part);
      const AsTrained trained(plan, part, cluster);
      const auto exchange = exchange_times(plan, attention, attention, part, cluster, GridAxis::Context);
      const LayerDivision division{1, false, {}, {}, exchange.forward, exchange.backward};
      const auto time = layer_time(part, attention, device_constants("A100-SXM4-80GB"), framework(), division);
      const LayerTimes own = times_on(trained.workload(), attention, trained.cluster().devices[0]);
      const auto with_ring = [](Seconds of_attention, Seconds transfers) {
        const double step = std::max(of_attention.value / c, transfers.value / (c - 1));
        return (c - 1) * step + of_attention.value / c;
      };
      const double others = (time.forward.total() - time.forward.attention).value;
      EXPECT_NEAR((own.forward + exchange.forward).value, others + with_ring(time.forward.attention, exchange.forward),
                  tolerance * time.forward.total().value);
      const Seconds again = recomputes ? time.forward.attention : Seconds(0);
      const Seconds repeated = recomputes ? exchange.forward : Seconds(0);
      double expected = (time.backward.total() - time.backward.attention).value +
                        with_ring(time.backward.attention - again, exchange.backward - repeated);
      if (recomputes) expected += with_ring(again, repeated);
      EXPECT_NEAR((own.backward + exchange.backward).value, expected, tolerance * time.backward.total().value);
    }
  }
}

TEST(AsTrained, AddsExchangesThatNothingHidesToPasses)
{
  for (const ContextExchange exchange : {ContextExchange::AllGather, ContextExchange::AllToAll}) {
    const ContextShape shape{1, 1, 2, {4, exchange}};
    Cluster cluster = cluster_of(shape, BytesPerSecond(1e10));
    const Workload part = priced(with_context(small_llama(), shape.context), cluster);
    Plan plan = plan_in_parts(shape, part.layers.size(), 1, names_for(shape));
    take_system(plan, part);
    const AsTrained trained(plan, part, cluster);
    const auto time = layer_time(part, attention, device_constants("A100-SXM4-80GB"), framework(), {2});
    const ShardTimes own = times_on(trained.workload(), attention, trained.cluster().devices[0]).of_shards.at(2);
    EXPECT_LE(own.forward.value, time.forward.total().value * (1 + tolerance));
    EXPECT_GE(own.forward.value, time.forward.device().value * (1 - tolerance));
    // A shard sends over a link of its own.
    const auto times = exchange_times(plan, attention, attention, part, cluster, GridAxis::Context);
    const double m = 2.0 * 4096 / 4;
    const double bytes =
        exchange == ContextExchange::AllToAll ? 2 * m * (2 * 1024 + 2 * 512) / 2 * 3 / 4 : 3 * 2 * 2 * m * 512 / 2;
    EXPECT_NEAR(times.forward.value, bytes / 1e10, tolerance);
    EXPECT_EQ(exchange_times(plan, 2, 2, part, cluster, GridAxis::Context).forward, Seconds(0));
  }
}

TEST(LeastAsTrained, CountsWhatARingHides)
{
  const ContextShape shape{1, 1, 1, {4, ContextExchange::Ring}};
  Cluster cluster = cluster_of(shape, BytesPerSecond(1e9));
  for (const ContextExchange exchange : {ContextExchange::Ring, ContextExchange::AllToAll}) {
    const Workload part = priced(with_context(small_llama(), {4, exchange}), cluster);
    Plan plan = plan_in_parts(shape, part.layers.size(), 1, names_for(shape));
    plan.context.exchange = exchange;
    take_system(plan, part);
    const double least = least_as_trained(plan, part, cluster);
    const AsTrained trained(plan, part, cluster);
    const LayerTimes own = times_on(trained.workload(), attention, cluster.devices[0]);
    const LayerTimes all = times_on(part, attention, cluster.devices[0]);
    if (exchange == ContextExchange::Ring) {
      EXPECT_LT(own.forward, all.forward);
    }
    EXPECT_GE(own.forward.value, least * all.forward.value * (1 - tolerance));
    EXPECT_GE((own.forward + own.backward).value, least * (all.forward + all.backward).value * (1 - tolerance));
  }
}

}  // namespace
}  // namespace isobar::compute::context_times_test

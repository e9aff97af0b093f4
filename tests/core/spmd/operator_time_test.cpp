#include "core/spmd/operator_time.hpp"

#include <gtest/gtest.h>

namespace isobar::spmd::operator_time_test {
namespace {

/// The operators of a layer with experts; x has 8 samples of 16 tokens of 32 numbers.
OperatorGraph graph_of_experts()
{
  MoeSizes sizes;
  sizes.layers = 2;
  sizes.hidden = 32;
  sizes.heads = 4;
  sizes.intermediate = 64;
  sizes.sequence = 16;
  sizes.experts = 4;
  sizes.capacity_factor = 1;
  return make_operator_graph(sizes, 8, 4);
}

const Operator& named(const OperatorGraph& graph, const std::string& name)
{
  for (const auto& node : graph.operators) {
    if (node.name == name) return node;
  }
  throw std::logic_error("no operator " + name);
}

const Signature by_samples = {{gather(0), full, full}, {gather(0)}};

OperatorTimes times_of(const OperatorGraph& graph, const Operator& node, const Signature& signature,
                       const std::vector<double>& shares, std::size_t device, const DeviceRates& rates)
{
  return operator_times(node, piece_of(node, signature, Pieces(graph, shares), device), rates);
}

TEST(OperatorTime, IsTheWorkOfThePieceOverTheRate)
{
  const auto graph = graph_of_experts();
  const auto& linear = named(graph, "layer0.linear1");
  const DeviceRates rates{FlopsPerSecond(1e6)};
  const double whole = 2.0 * 8 * 16 * 32 * 64 / 1e6;
  const auto times = times_of(graph, linear, by_samples, {0.75, 0.25}, 0, rates);
  EXPECT_DOUBLE_EQ(times.forward.value, 0.75 * whole);
  EXPECT_DOUBLE_EQ(times.backward.value, 2 * 0.75 * whole);
}

TEST(OperatorTime, CountsTheBackwardOfDispatchOnce)
{
  const auto graph = graph_of_experts();
  const auto& dispatch = named(graph, "layer1.dispatch");
  const DeviceRates rates{FlopsPerSecond(1e6), {}, Seconds(1)};
  const auto times = times_of(graph, dispatch, {{gather(0), gather(0)}, {gather(0)}}, {0.5, 0.5}, 0, rates);
  EXPECT_EQ(times.backward, times.forward);
  EXPECT_EQ(times.launch_backward, Seconds(1));
  const auto& expert = named(graph, "layer1.expert1");
  const auto twice = times_of(graph, expert, {{gather(0), gather(1)}, {gather(1)}}, {0.5, 0.5}, 0, rates);
  EXPECT_EQ(twice.backward, 2 * twice.forward);
  EXPECT_EQ(twice.launch_backward, Seconds(2));
}

TEST(OperatorTime, HasLaunchesAndTheTrafficOfMemoryAsFloors)
{
  const auto graph = graph_of_experts();
  const auto& linear = named(graph, "layer0.linear1");
  const double work = 2.0 * 4 * 16 * 32 * 64;
  const double bytes = 4.0 * (4 * 16 * 32 + 64 * 32 + 64 + 4 * 16 * 64);
  const DeviceRates slow_launch{FlopsPerSecond(1e9), BytesPerSecond(1e12), Seconds(3)};
  EXPECT_DOUBLE_EQ(times_of(graph, linear, by_samples, {0.5, 0.5}, 1, slow_launch).forward.value, 3 + work / 1e9);
  const DeviceRates slow_memory{FlopsPerSecond(1e12), BytesPerSecond(1e3), Seconds(3)};
  EXPECT_DOUBLE_EQ(times_of(graph, linear, by_samples, {0.5, 0.5}, 1, slow_memory).forward.value, bytes / 1e3);
  const auto& relu = named(graph, "layer0.relu");
  const Signature slices = {{gather(0)}, {gather(0)}};
  EXPECT_DOUBLE_EQ(times_of(graph, relu, slices, {0.5, 0.5}, 1, slow_memory).forward.value,
                   2 * 4.0 * (4 * 16 * 64) / 1e3);
  EXPECT_EQ(times_of(graph, relu, slices, {0.5, 0.5}, 1, {FlopsPerSecond(1e9)}).forward, Seconds(0));
}

TEST(OperatorTime, IsNothingForADeviceWithoutAPieceAndForViews)
{
  const auto graph = graph_of_experts();
  const DeviceRates rates{FlopsPerSecond(1e6), BytesPerSecond(1e3), Seconds(3)};
  const auto none = times_of(graph, named(graph, "layer0.linear1"), by_samples, {1, 0}, 1, rates);
  EXPECT_EQ(none.forward + none.backward + none.launch_forward, Seconds(0));
  const auto& view = named(graph, "layer0.merge_heads");
  EXPECT_EQ(times_of(graph, view, {{gather(0)}, {gather(0)}}, {0.5, 0.5}, 0, rates).forward, Seconds(0));
}

TEST(OperatorTime, OfAnUpdateIsThatOfItsWorkOrOfTheMemoryThatItTouches)
{
  const DeviceRates rates{FlopsPerSecond(100), BytesPerSecond(10), Seconds(3)};
  EXPECT_EQ(update_time(Flops(1200), Bytes(28), rates), Seconds(12));
  EXPECT_EQ(update_time(Flops(12), Bytes(28), rates), Seconds(2.8));
  EXPECT_EQ(update_time(Flops(12), Bytes(28), {FlopsPerSecond(100)}), Seconds(0.12));
}

TEST(OperatorTime, OfADeviceAtAnotherSpeedIsInProportion)
{
  const auto graph = graph_of_experts();
  const DeviceRates rates{
      FlopsPerSecond(1e6), BytesPerSecond(1e5), Seconds(0.1), {{Flops(1e4), 0.25}, {Flops(1e6), 1}}};
  const DeviceRates slower = at_speed(rates, FlopsPerSecond(4e5));
  EXPECT_EQ(slower.flops, FlopsPerSecond(4e5));
  for (const auto* name : {"layer0.linear1", "layer0.relu", "layer1.expert1"}) {
    const auto& node = named(graph, name);
    const OperatorPiece piece{0.5, Bytes(3e4)};
    EXPECT_DOUBLE_EQ(operator_times(node, piece, slower).forward.value,
                     2.5 * operator_times(node, piece, rates).forward.value);
  }
  EXPECT_DOUBLE_EQ(update_time(Flops(10), Bytes(1e6), slower).value, 2.5 * 10);
}

TEST(OperatorTime, TakesTheEfficiencyOfProductsFromATable)
{
  const DeviceRates rates{FlopsPerSecond(100), {}, {}, {{Flops(10), 0.25}, {Flops(30), 0.75}}};
  EXPECT_EQ(rates.product_rate(Flops(1)), FlopsPerSecond(25));
  EXPECT_EQ(rates.product_rate(Flops(10)), FlopsPerSecond(25));
  EXPECT_EQ(rates.product_rate(Flops(20)), FlopsPerSecond(50));
  EXPECT_EQ(rates.product_rate(Flops(40)), FlopsPerSecond(75));
  EXPECT_EQ(DeviceRates{FlopsPerSecond(100)}.product_rate(Flops(1)), FlopsPerSecond(100));
}

}  // namespace
}  // namespace isobar::spmd::operator_time_test

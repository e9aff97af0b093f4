#include "core/costs/exchange_times.hpp"

#include "core/plan/plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exchange_times_test {
namespace {

constexpr double between = 1e9;  // B/s
constexpr double inside = 1e10;
constexpr double dispatched = 64e6;
constexpr std::size_t layer = 1;

/// Nodes of `each` devices, each pair connected by itself.
Cluster cluster_of(std::size_t nodes, std::size_t each)
{
  Cluster cluster;
  cluster.name = "c";
  const std::size_t count = nodes * each;
  std::vector<Path> paths;
  for (std::size_t i = 0; i < count; ++i) {
    Device& device = cluster.devices.emplace_back();
    device.name = fmt::format("d{}", i);
    device.site = fmt::format("n{}", i / each);
    for (std::size_t j = 0; j < count; ++j) {
      paths.push_back({Seconds(0), BytesPerSecond(i / each == j / each ? inside : between)});
    }
  }
  cluster.network = std::make_shared<MatrixNetwork>(count, std::move(paths));
  return cluster;
}

Workload mixture(const ExpertParallelism& experts, std::size_t per_token)
{
  const auto workload = workload_from_text(
      fmt::format(
          "model: layers\nmicro_batch: 1\ndtype: bf16\noptimizer: adam\nsequence: 64\nlayers:\n"
          "  - {{name: a, forward: 1 TFLOP, parameters: 1000, activations: 1 MB, output: 1 MB}}\n"
          "  - {{name: b, forward: 2 TFLOP, parameters: 65000, activations: 8 MB, output: 1 MB, experts: {{count: 64, "
          "per_token: {}, parameters: 64000, forward: 1 TFLOP, activations: 4 MB, dispatched: 64 MB}}}}\n",
          per_token),
      "m.yaml");
  return with_experts(workload, experts);
}

Plan plan_of(const Cluster& cluster, const ExpertParallelism& experts, std::size_t shards)
{
  Plan plan;
  plan.experts = experts;
  plan.sync.algorithm = Algorithm::Hierarchical;
  for (std::size_t i = 0; i < 2; ++i) {
    Stage& stage = plan.stages.emplace_back();
    stage.first_layer = stage.last_layer = i;
    for (std::size_t device = 0; device < cluster.devices.size(); ++device) {
      if (device % shards == 0) stage.replicas.emplace_back();
      stage.replicas.back().shards.push_back({.device = cluster.devices[device].name,
                                              .share = 1.0 / static_cast<double>(shards),
                                              .site = cluster.devices[device].site});
    }
  }
  return plan;
}

double part_once(std::size_t nodes, std::size_t each, std::size_t per_token, std::size_t shards = 1, bool whole = false)
{
  const Cluster cluster = cluster_of(nodes, each);
  const ExpertParallelism experts{nodes * each / shards, whole};
  const auto workload = mixture(experts, per_token);
  return dispatched_once_a_node(plan_of(cluster, experts, shards), layer, layer, workload, cluster);
}

/// Of the data of a device, in which g of n nodes x g ends inside and the others between, one after another.
double all_rounds(double nodes, double each)
{
  return (each - 1) / (nodes * each) / inside + (nodes - 1) / nodes / between;
}

TEST(DispatchedOnceANode, IsThePartThatTheNetworkBetweenNodesCarries)
{
  for (const std::size_t nodes : {2, 4, 8}) {
    for (const std::size_t per_token : {1, 2, 8}) {
      const auto n = static_cast<double>(nodes);
      const auto k = static_cast<double>(per_token);
      const double once = (n - 1) * (1 - std::pow(1 - 1 / n, k)) / k / between;
      EXPECT_NEAR(part_once(nodes, 4, per_token), std::min(1.0, once / all_rounds(n, 4)), 1e-6) << nodes << per_token;
    }
  }
}

TEST(DispatchedOnceANode, IsNoLessThanWhatIsPassedOnInside)
{
  // Nearly all experts of a token are in the same few nodes: what limits is the network inside.
  const double part = part_once(2, 8, 64);
  const double passed_on = 7.0 / 8 / inside;
  EXPECT_NEAR(part, passed_on / all_rounds(2, 8), 1e-6);
}

TEST(DispatchedOnceANode, CountsAllShardsThatHaveWholeExperts)
{
  EXPECT_NEAR(part_once(2, 4, 8, 2, true), part_once(2, 4, 8), 1e-9);
  // Shards of parts exchange beside each other: two places of each node.
  EXPECT_NEAR(part_once(2, 4, 8, 2), part_once(2, 2, 8), 1e-9);
}

TEST(DispatchedOnceANode, IsAllInsideOfANodeAndOfOneDeviceOfEach)
{
  EXPECT_EQ(part_once(1, 8, 2), 1);
  EXPECT_EQ(part_once(8, 1, 2), 1);
}

TEST(ExchangeTimes, OfExpertsAreInProportionOfThePart)
{
  const Cluster cluster = cluster_of(2, 4);
  const ExpertParallelism experts{8, false};
  const auto workload = mixture(experts, 2);
  const Plan plan = plan_of(cluster, experts, 1);
  const auto times = exchange_times(plan, layer, layer, workload, cluster, GridAxis::Experts);
  // There and back.
  EXPECT_NEAR(times.forward.value, 2 * dispatched * all_rounds(2, 4), 1e-6);
  const auto part = exchange_times(plan, layer, layer, workload, cluster, GridAxis::Experts, 0.25);
  EXPECT_NEAR(part.forward / times.forward, 0.25, 1e-6);
  EXPECT_NEAR(part.backward / times.backward, 0.25, 1e-6);
}

}  // namespace
}  // namespace isobar::exchange_times_test

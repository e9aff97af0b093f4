#include "core/steps/step_graph.hpp"

#include "core/program/shared_flows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <vector>

namespace isobar::step_graph_test {
namespace {

TEST(StepGraph, PlaysAMessageAfterItsLatencyAndAfterTheMessageBeforeIt)
{
  StepGraph graph([](std::size_t, std::size_t) { return GraphPath{3, 10}; });
  const std::size_t first = graph.add_computation(2);
  const std::size_t stream = graph.add_stream(0, 1);
  for (int i = 0; i < 2; ++i) graph.add_wait(graph.add_message(stream, 50), first);
  EXPECT_DOUBLE_EQ(graph.play().front(), 2 + 3 + 5 + 5);
}

TEST(StepGraph, PlaysTheRoundsOfACollectiveAfterItsStart)
{
  StepGraph graph([](std::size_t, std::size_t) { return GraphPath{1, 10}; });
  graph.add_collective(graph.add_group({4, 7}, 5), graph.add_rounds({{{0, 1, Bytes(20), 2}}, {{1, 0, Bytes(10)}}}));
  EXPECT_DOUBLE_EQ(graph.play().front(), 5 + (2 + 4) + (1 + 1));
}

TEST(StepGraph, RefusesPartsThatWaitForEachOther)
{
  StepGraph graph({});
  const std::size_t one = graph.add_computation(1);
  const std::size_t other = graph.add_computation(1);
  graph.add_wait(one, other);
  graph.add_wait(other, one);
  EXPECT_THROW(graph.play(), std::logic_error);
}

TEST(StepGraph, LetsCopiesShareTheLinksOfTheirWaysWithMessages)
{
  const std::vector<SharedLink> bus = {{"bus", BytesPerSecond(10)}};
  StepGraph graph([&](std::size_t, std::size_t) { return GraphPath{1, 10, bus}; });
  graph.add_copy(graph.add_way({1, 10, bus}, 3), 100);  // from 4 on
  graph.add_message(graph.add_stream(0, 1), 50);        // from 1 on: 30 of 50 alone, then half of the bus
  EXPECT_DOUBLE_EQ(graph.play().front(), 4 + 4 + 8);
}

TEST(StepGraph, LetsComputationsShareTheCoresOfTheirPace)
{
  StepGraph graph({});
  const std::size_t pace = graph.add_pace(1, 2);
  // Three of 4 s on two cores: each takes 6 s. The fourth follows one of them alone.
  const std::size_t first = graph.add_computation(4, pace);
  for (int i = 0; i < 2; ++i) graph.add_computation(4, pace);
  graph.add_wait(graph.add_computation(2, pace), first);
  EXPECT_DOUBLE_EQ(graph.play().front(), 6 + 2);
}

/// Flows over some of five links. Each begins at a time of its own.
struct RandomFlows {
  explicit RandomFlows(unsigned seed)
  {
    static constexpr std::array names = {"a", "b", "c", "d", "e"};
    std::mt19937_64 random(seed);
    std::vector<SharedLink> links;
    for (const char* name : names) {
      const auto bandwidth = static_cast<double>(10 * (1 + random() % 20));
      links.push_back({name, BytesPerSecond(bandwidth), 1.0, random() % 4 == 0});
    }
    for (std::size_t i = 2 + random() % 6; i > 0; --i) {
      GraphPath path{random() % 5 == 0 ? 0 : static_cast<double>(1 + random() % 100) / 100, 1e9};
      for (SharedLink link : links) {
        if (random() % 2 == 0) continue;
        if (!link.is_fat_pipe && random() % 3 == 0) link.passes = 2;
        path.links.push_back(link);
        path.bandwidth = std::min(path.bandwidth, link.bandwidth.value / link.passes);
      }
      paths.push_back(path);
      bytes.push_back(static_cast<double>(1 + random() % 1000));
      begins.push_back(static_cast<double>(random() % 100) / 10);
    }
  }

  std::vector<GraphPath> paths;
  std::vector<double> bytes;
  std::vector<double> begins;
};

double end_by_flows(const RandomFlows& all)
{
  SharedFlows flows;
  for (std::size_t i = 0; i < all.paths.size(); ++i) {
    const GraphPath& path = all.paths[i];
    flows.begin(i, flows.way_over(path.links), all.begins[i] + path.latency, all.bytes[i], path.bandwidth,
                weight_of_flow(Seconds(path.latency)));
  }
  double last = 0;
  for (std::size_t left = all.paths.size(); left > 0;) {
    for (const SharedFlows::End& end : flows.advance()) {
      last = std::max(last, end.time);
      --left;
    }
  }
  return last;
}

double end_by_graph(const RandomFlows& all)
{
  StepGraph graph([&](std::size_t from, std::size_t) { return all.paths[from / 2]; });
  for (std::size_t i = 0; i < all.paths.size(); ++i) {
    const std::size_t before = graph.add_computation(all.begins[i]);
    graph.add_wait(graph.add_message(graph.add_stream(2 * i, 2 * i + 1), all.bytes[i]), before);
  }
  return graph.play().front();
}

TEST(StepGraph, SharesLinksAsSharedFlowsDo)
{
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const RandomFlows flows(seed);
    const double end = end_by_flows(flows);
    EXPECT_NEAR(end_by_graph(flows), end, 1e-9 * end) << seed;
  }
}

}  // namespace
}  // namespace isobar::step_graph_test

#include "allocators/spmd/pipeline_search.hpp"

#include "core/plan/operator_plan.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators::spmd::pipeline_search_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::IsEmpty;
using Groups = std::vector<std::vector<std::size_t>>;

/// Two devices at each of two speeds, with paths of 10 µs.
Cluster two_groups(double fast, double slow, double bandwidth)
{
  return cluster({fast, fast, slow, slow}, {Seconds(1e-5), BytesPerSecond(bandwidth)});
}

OperatorGraph wave_of(const Workload& workload)
{
  return operator_graph_of(workload, 2 * workload.micro_batch);
}

SpmdOptions with_pairs()
{
  SpmdOptions options;
  options.microbatches = {2};
  return options;
}

TEST(PipelineCuts, HaveOneTensorOfSamplesAcrossThemAndNoParameterOrCommonData)
{
  for (const auto& workload : moes_by_operators()) {
    const OperatorGraph graph = operator_graph_of(workload).value();
    const auto samples = sample_dimensions(graph);
    const auto readers = graph.readers();
    std::vector<std::size_t> expected;
    for (std::size_t cut = 1; cut < graph.operators.size(); ++cut) {
      std::vector<std::size_t> crossing;
      bool is_shared = false;
      for (std::size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
        const std::size_t producer = graph.tensors[tensor].producer;
        if (producer >= cut || readers[tensor].empty() || readers[tensor].back() < cut) continue;
        const bool is_data = is_source(graph.operators[producer].kind);
        is_shared = is_shared || graph.is_parameter(tensor) || (is_data && readers[tensor].front() < cut);
        if (!is_data) crossing.push_back(tensor);
      }
      if (is_shared || crossing.size() != 1) continue;
      if (samples[crossing[0]] == std::uint8_t{0}) expected.push_back(cut);
    }
    EXPECT_EQ(pipeline_cuts(graph), expected);
    for (std::size_t i = 1; i < graph.operators.size(); ++i) {
      const bool begins_block =
          graph.operators[i].layer > 1 && graph.operators[i].layer != graph.operators[i - 1].layer;
      if (!begins_block) continue;
      EXPECT_TRUE(std::binary_search(expected.begin(), expected.end(), i)) << graph.operators[i].name;
    }
  }
}

TEST(GroupRuns, OfAllOperatorsCostWhatThePlanWithoutPipelineCosts)
{
  const Cluster devices = two_groups(1e9, 1e9, 1e8);
  for (const auto& workload : moes_by_operators()) {
    const OperatorGraph graph = wave_of(workload);
    const Replicas all = {{0, 1, 2, 3}};
    const SpmdPlan plan = find_spmd_plan(graph, workload, devices, all, with_pairs()).value();
    const GroupRun run{0, graph.operators.size(), 1, 2};
    const SpmdPlan same = find_spmd_plan(graph, workload, devices, all, with_pairs(), run).value();
    EXPECT_EQ(plan.cost, same.cost);
    EXPECT_EQ(plan.cuts, same.cuts);
    EXPECT_EQ(plan.signatures, same.signatures);
    EXPECT_EQ(plan.memory, same.memory);
  }
}

TEST(GroupRuns, CostLessForEachOfManyWaves)
{
  const Cluster devices = two_groups(1e9, 1e9, 1e8);
  const Workload workload = moes_by_operators().front();
  const OperatorGraph graph = wave_of(workload);
  const auto cost_of_wave = [&](std::uint64_t waves) {
    const GroupRun run{0, graph.operators.size(), waves, 2};
    return find_spmd_plan(graph, workload, devices, Replicas{{0, 1}}, with_pairs(), run).value().cost;
  };
  EXPECT_LT(cost_of_wave(4), cost_of_wave(2)) << "parameters are reformed and updated once a step";
  EXPECT_GT(4 * cost_of_wave(4), 2 * cost_of_wave(2));
}

TEST(GroupRuns, KeepTheActivationsOfSeveralWaves)
{
  const Cluster devices = two_groups(1e9, 1e9, 1e8);
  const Workload workload = moes_by_operators().front();
  const OperatorGraph graph = wave_of(workload);
  const auto memory_with = [&](std::uint64_t held) {
    const GroupRun run{0, graph.operators.size(), 4, held};
    return find_spmd_plan(graph, workload, devices, Replicas{{0}}, with_pairs(), run).value().memory.front().value;
  };
  const double kept = memory_with(4) - memory_with(2);
  EXPECT_GT(kept, 0);
  EXPECT_NEAR(memory_with(6) - memory_with(4), kept, 1e-9 * kept);
}

TEST(GroupRuns, TakeAndGiveSlicesOfTheSamples)
{
  const Cluster devices = two_groups(1e9, 1e9, 1e8);
  for (const auto& workload : moes_by_operators()) {
    const OperatorGraph graph = wave_of(workload);
    for (const std::size_t cut : pipeline_cuts(graph)) {
      const std::size_t tensor = crossing_tensors(graph, cut).front();
      const std::size_t maker = graph.tensors[tensor].producer;
      const GroupRun before{0, cut, 2, 4};
      const auto first = find_spmd_plan(graph, workload, devices, Replicas{{0, 1}}, with_pairs(), before);
      ASSERT_TRUE(first) << graph.operators[cut].name;
      EXPECT_THAT(first->signatures[maker].outputs, ElementsAre(gather(0)));
      const GroupRun after{cut, graph.operators.size(), 2, 2};
      const auto second = find_spmd_plan(graph, workload, devices, Replicas{{2, 3}}, with_pairs(), after);
      ASSERT_TRUE(second) << graph.operators[cut].name;
      EXPECT_EQ(second->cuts.front(), cut);
      for (std::size_t i = 0; i < graph.operators.size(); ++i) {
        const bool is_source_of_all =
            is_source(graph.operators[i].kind) && !graph.is_parameter(graph.operators[i].outputs[0]);
        if (is_source_of_all) continue;
        EXPECT_EQ(first->signatures[i] == Signature{}, i >= cut) << graph.operators[i].name;
        EXPECT_EQ(second->signatures[i] == Signature{}, i < cut) << graph.operators[i].name;
      }
    }
  }
}

TEST(Pipelines, AreDivisionsWhoseGroupsHaveRunsOfParts)
{
  const Cluster devices = two_groups(2e9, 1e9, 1e8);
  for (const auto& workload : moes_by_operators()) {
    const auto found = find_spmd_pipeline(workload, devices, {{2, 3}, {0, 1}}, 8, {});
    ASSERT_TRUE(found);
    ASSERT_EQ(found->groups.size(), 2U);
    EXPECT_THAT(found->groups[0].devices, ElementsAre(0, 1)) << "the fastest first";
    EXPECT_EQ(found->groups[1].end_part, found->cuts.size());
    const OperatorGraph graph = operator_graph_of(workload).value();
    EXPECT_THAT(faults_of(graph, {found->cuts, found->signatures}, Rules::Corrected), IsEmpty());
    const std::size_t cut = found->cuts[found->groups[0].end_part];
    const std::size_t tensor = crossing_tensors(graph, cut).front();
    EXPECT_EQ(found->signatures[graph.tensors[tensor].producer].outputs.front(), gather(0));
    Flops first;
    Flops all;
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      all += graph.operators[i].forward;
      if (i < cut) first += graph.operators[i].forward;
    }
    EXPECT_GT(first, 0.5 * all) << "the faster group has more work";
  }
}

/// The cost of the best pipeline of two groups, of all cuts, by its definition: links that no two transfers share.
double least_cost(const Workload& workload, const Cluster& devices, const Groups& groups, std::uint64_t waves)
{
  const OperatorGraph graph = wave_of(workload);
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t cut : pipeline_cuts(graph)) {
    const GroupRun before{0, cut, waves, 2 * std::min<std::uint64_t>(2, waves)};
    const GroupRun after{cut, graph.operators.size(), waves, 2};
    const auto first = find_spmd_plan(graph, workload, devices, Replicas{groups[0]}, with_pairs(), before);
    const auto second = find_spmd_plan(graph, workload, devices, Replicas{groups[1]}, with_pairs(), after);
    if (!first || !second) continue;
    const Path path = devices.path(groups[0][0], groups[1][0]);
    const Bytes size = graph.tensors[crossing_tensors(graph, cut).front()].size;
    const auto senders = static_cast<double>(groups[0].size());
    const double leave = (path.latency + size / senders / path.bandwidth).value;
    const double one = first->cost.value;
    const double two = second->cost.value;
    const double longest = std::max({one, two, leave});
    least = std::min(least, static_cast<double>(waves - 1) * longest + one + two + 2 * leave);
  }
  return least;
}

TEST(Pipelines, CostAlmostAsLittleAsTheBestOfAllCuts)
{
  for (const auto& workload : moes_by_operators()) {
    for (const double bandwidth : {1e7, 1e9}) {
      for (const double slow : {1e9, 3e8}) {
        const Cluster devices = two_groups(1e9, slow, bandwidth);
        const Groups groups = {{0, 1}, {2, 3}};
        const double found = find_spmd_pipeline(workload, devices, groups, 8, {}).value().cost.value;
        const double least = least_cost(workload, devices, groups, 4);
        EXPECT_GE(found, least * (1 - 1e-9));
        EXPECT_LE(found, least * 1.1);
      }
    }
  }
}

TEST(Pipelines, LeaveAGroupWithoutMemoryAShorterRun)
{
  const Workload workload = moes_by_operators().front();
  const Groups groups = {{0, 1}, {2, 3}};
  Cluster devices = two_groups(1e9, 1e9, 1e9);
  const auto work_of_first = [&](const SpmdPipeline& pipeline) {
    const OperatorGraph graph = operator_graph_of(workload).value();
    Flops first;
    for (std::size_t i = 0; i < pipeline.cuts[pipeline.groups[0].end_part]; ++i) first += graph.operators[i].forward;
    return first;
  };
  const auto roomy = find_spmd_pipeline(workload, devices, groups, 8, {}).value();
  const OperatorGraph graph = wave_of(workload);
  const GroupRun run{0, roomy.cuts[roomy.groups[0].end_part], 4, 4};
  const Bytes needed = find_spmd_plan(graph, workload, devices, Replicas{{0, 1}}, with_pairs(), run)->memory.front();
  for (const std::size_t device : {0, 1}) devices.devices[device].memory = 0.5 * needed;
  const auto tight = find_spmd_pipeline(workload, devices, groups, 8, {});
  ASSERT_TRUE(tight);
  EXPECT_LT(work_of_first(*tight), work_of_first(roomy));
  for (auto& device : devices.devices) device.memory = Bytes(1e3);
  EXPECT_FALSE(find_spmd_pipeline(workload, devices, groups, 8, {}));
}

TEST(Pipelines, FollowTheWidestWaysFromTheFastestGroup)
{
  // Group 0 is the fastest; the way from it to group 2 is wide, that to group 1 narrow.
  const Workload workload = moes_by_operators().front();
  std::vector<Path> paths;
  for (std::size_t i = 0; i < 9; ++i) {
    const bool is_narrow = i / 3 + i % 3 == 1;
    paths.push_back({Seconds(1e-5), BytesPerSecond(is_narrow ? 1e4 : 1e9)});
  }
  Cluster devices = cluster({3e9, 2e9, 1e9}, {Seconds(1e-5), BytesPerSecond(1e9)});
  devices.network = std::make_shared<MatrixNetwork>(3, paths);
  const auto found = find_spmd_pipeline(workload, devices, {{0}, {1}, {2}}, 8, {}).value();
  EXPECT_THAT(found.groups[1].devices, ElementsAre(2));
}

}  // namespace
}  // namespace isobar::allocators::spmd::pipeline_search_test

#include "core/spmd/operator_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace isobar::spmd::operator_graph_test {
namespace {

using ::testing::ElementsAre;

MoeSizes t_moe(std::uint64_t devices)
{
  MoeSizes sizes;
  sizes.layers = 6;
  sizes.hidden = 1024;
  sizes.heads = 4;
  sizes.intermediate = 4096;
  sizes.sequence = 256;
  sizes.experts = 4 * devices;
  sizes.capacity_factor = 1.25;
  return sizes;
}

MoeSizes bert(std::uint64_t devices, std::uint64_t top_k)
{
  MoeSizes sizes;
  sizes.trunk = Trunk::Bert;
  sizes.layers = 8;
  sizes.hidden = 768;
  sizes.heads = 12;
  sizes.intermediate = 3072;
  sizes.sequence = 128;
  sizes.experts = devices;
  sizes.top_k = top_k;
  sizes.capacity_factor = 1.25;
  sizes.rounds_up = true;
  sizes.vocabulary = devices * (33278 / devices + 1);
  return sizes;
}

MoeSizes vit(std::uint64_t devices, std::uint64_t top_k)
{
  MoeSizes sizes = bert(devices, top_k);
  sizes.trunk = Trunk::Vit;
  sizes.sequence = 65;
  sizes.experts = 2 * devices;
  sizes.image = 32;
  sizes.patch = 4;
  sizes.classes = 10;
  return sizes;
}

constexpr std::uint64_t batch_per_device = 32;
constexpr double float32 = 4;

OperatorGraph graph_of(const MoeSizes& sizes, std::uint64_t devices)
{
  return make_operator_graph(sizes, batch_per_device * devices, float32);
}

/// Forward GFLOP of a device, of one layer or of all.
double gflop(const OperatorGraph& graph, std::uint64_t devices, std::optional<std::size_t> layer = {})
{
  double work = 0;
  for (const auto& node : graph.operators) {
    if (!layer || node.layer == *layer) work += node.forward.value;
  }
  return work / static_cast<double>(devices) / 1e9;
}

void expect_model(const MoeSizes& sizes, std::uint64_t devices, std::uint64_t parameters, double dense, double moe,
                  double all)
{
  const OperatorGraph graph = graph_of(sizes, devices);
  EXPECT_EQ(graph.parameters(), parameters);
  EXPECT_NEAR(gflop(graph, devices, 1), dense, 0.005);
  EXPECT_NEAR(gflop(graph, devices, 2), moe, 0.005);
  EXPECT_NEAR(gflop(graph, devices), all, 0.005);
}

TEST(OperatorGraph, HasTheParametersAndWorkOfTMoe)
{
  expect_model(t_moe(4), 4, 453'098'496, 214.75, 260.11, 1424.59);
  const OperatorGraph graph = graph_of(t_moe(8), 8);
  EXPECT_EQ(graph.parameters(), 855'800'832U);
  EXPECT_NEAR(gflop(graph, 8), 1425.39, 0.005);
}

TEST(OperatorGraph, HasTheParametersAndWorkOfBert)
{
  expect_model(bert(8, 2), 8, 239'984'128, 59.59, 121.65, 934.36);
  EXPECT_NEAR(gflop(graph_of(bert(8, 2), 8), 8, 9), 209.38, 0.005);
  expect_model(bert(8, 1), 8, 239'984'128, 59.59, 71.32, 733.03);
  EXPECT_EQ(graph_of(bert(64, 2), 64).parameters(), 1'297'120'768U);
  EXPECT_NEAR(gflop(graph_of(bert(64, 2), 64), 64), 935.77, 0.005);
  EXPECT_NEAR(gflop(graph_of(bert(64, 1), 64), 64), 774.70, 0.005);
}

TEST(OperatorGraph, HasTheParametersAndWorkOfVit)
{
  expect_model(vit(8, 2), 8, 339'948'298, 29.86, 59.62, 358.08);
  expect_model(vit(8, 1), 8, 339'948'298, 29.86, 34.95, 259.39);
  EXPECT_EQ(graph_of(vit(64, 2), 64).parameters(), 2'454'221'578U);
  EXPECT_NEAR(gflop(graph_of(vit(64, 2), 64), 64), 477.93, 0.005);
  EXPECT_NEAR(gflop(graph_of(vit(64, 1), 64), 64), 320.04, 0.005);
}

TEST(OperatorGraph, HasTheParametersOfItsLayersByFormula)
{
  const MoeSizes sizes = t_moe(4);
  const auto d = sizes.hidden;
  const auto f = sizes.intermediate;
  EXPECT_EQ(graph_of(sizes, 4).parameters(),
            3 * (4 * d * d + 2 * d * f + 9 * d + f) +
                3 * (4 * d * d + 8 * d + d * sizes.experts + 2 * sizes.experts * d * f));
  const std::uint64_t experts = 3 * 2 * sizes.experts * d * f;
  EXPECT_EQ(graph_of(sizes, 4).parameters() - experts, 50'445'312U);
}

TEST(OperatorGraph, WithoutExpertsIsDense)
{
  MoeSizes sizes = bert(8, 1);
  sizes.experts = 0;
  const OperatorGraph graph = graph_of(sizes, 8);
  EXPECT_NEAR(gflop(graph, 8, 2), 59.59, 0.005);
  EXPECT_EQ(graph.parameters(), 239'984'128U - 4 * (2 * 8 * 768 * 3072 + 768 * 8 - 2 * 768 * 3072 - 768 - 3072));
}

TEST(OperatorGraph, ComputesBackwardTwiceForwardExceptForDispatchAndTheFirstOperatorOnData)
{
  for (const auto& node : graph_of(t_moe(4), 4).operators) {
    const bool is_once = node.kind == OperatorKind::Dispatch || node.name == "layer0.qkv";
    EXPECT_EQ(node.backward, (is_once ? 1 : 2) * node.forward) << node.name;
    const bool has_weights = node.kind == OperatorKind::Linear || node.kind == OperatorKind::QkvLinear ||
                             node.kind == OperatorKind::Expert || node.kind == OperatorKind::Gating;
    EXPECT_EQ(node.backward_weight, has_weights ? node.forward : Flops(0)) << node.name;
  }
}

TEST(OperatorGraph, CountsSlotsByPatchesWithoutTheClassToken)
{
  EXPECT_EQ(capacity_of(vit(8, 2)), 10U);
  EXPECT_EQ(capacity_of(vit(64, 1)), 1U);
  EXPECT_EQ(capacity_of(t_moe(4)), 20U);
  MoeSizes uneven = t_moe(4);
  uneven.experts = 24;  // 13.33 slots
  EXPECT_EQ(capacity_of(uneven), 13U);
  uneven.rounds_up = true;
  EXPECT_EQ(capacity_of(uneven), 14U);
}

TEST(OperatorGraph, ListsOperatorsAfterThoseThatTheyRead)
{
  for (MoeSizes sizes : {t_moe(4), bert(4, 2), vit(4, 1)}) {
    for (const bool parity : {false, true}) {
      sizes.parity = parity;
      const OperatorGraph graph = graph_of(sizes, 4);
      std::set<std::string> names;
      for (std::size_t i = 0; i < graph.operators.size(); ++i) {
        const Operator& node = graph.operators[i];
        EXPECT_TRUE(names.insert(node.name).second) << node.name;
        for (const auto input : node.inputs) EXPECT_LT(graph.tensors[input].producer, i);
        for (const auto output : node.outputs) EXPECT_EQ(graph.tensors[output].producer, i);
        EXPECT_LT(node.layer, layers_of(sizes));
      }
      EXPECT_EQ(graph.operators.back().kind, OperatorKind::Output);
    }
  }
}

TEST(OperatorGraph, KeepsEachTensorOnce)
{
  MoeSizes sizes = t_moe(4);
  sizes.layers = 1;
  double kept = 0;
  for (const auto& node : make_operator_graph(sizes, 1, float32).operators) kept += node.kept.value;
  const double state = 256.0 * 1024;
  const double probabilities = 4.0 * 256 * 256;
  // Inputs of qkv, scores, context, out, norm1, linear1, norm2; of linear2 after its relu and its dropout.
  const double numbers = state + 3 * state + 2 * probabilities + 4 * state + 2 * 4 * state;
  const double masks = probabilities + state + 4 * state + state;
  EXPECT_EQ(kept, float32 * numbers + masks);
}

TEST(PublishedGraph, ListsTheOperatorsOfALayerInItsOrder)
{
  MoeSizes sizes = t_moe(4);
  sizes.layers = 2;
  sizes.parity = true;
  std::vector<std::string> names;
  for (const auto& node : make_operator_graph(sizes, 4, float32).operators) {
    if (node.layer == 2) names.push_back(node.name.substr(node.name.find('.') + 1));
  }
  EXPECT_THAT(
      names, ElementsAre("q", "k", "v", "in.weight", "in.bias", "out.weight", "out.bias", "attention", "transpose",
                         "dropout1", "add1", "norm1.weight", "norm1.bias", "norm1", "gate", "gating", "dispatch", "w1",
                         "expert1", "relu", "w2", "expert2", "combine", "add2", "norm2.weight", "norm2.bias", "norm2"));
}

TEST(PublishedGraph, CountsThreeFlopsPerMultiplyAddAndSomePerElement)
{
  MoeSizes sizes = t_moe(4);
  sizes.parity = true;
  const double B = 128, s = 256, d = 1024, f = 4096, E = 16, C = 20;
  for (const auto& node : graph_of(sizes, 4).operators) {
    EXPECT_EQ(node.backward, 2 * node.forward) << node.name;
    const auto expect = [&](const std::string& name, double work) {
      if (node.name == name) {
        EXPECT_EQ(node.forward.value, work) << name;
      }
    };
    expect("layer0.q", B * s * d);
    expect("layer0.attention", 6 * B * s * s * d + 5 * B * s * s);
    expect("layer0.dropout1", 20 * B * s * d);
    expect("layer0.norm1", 10 * B * s * d);
    expect("layer0.linear1", 3 * B * s * d * f);
    expect("layer0.relu", B * s * f);
    expect("layer1.gating", 10 * B * s * d * E * C);
    expect("layer1.dispatch", 3 * B * s * d * E * C);
    expect("layer1.expert1", 3 * B * E * C * d * f);
    expect("layer1.combine", 3 * B * s * d * E * C);
    expect("head.sum", B * s * d);
  }
}

const Tensor& tensor_of(const OperatorGraph& graph, const std::string& name, std::size_t output = 0)
{
  const auto node = std::find_if(graph.operators.begin(), graph.operators.end(),
                                 [&](const Operator& each) { return each.name == name; });
  return graph.tensors[node->outputs.at(output)];
}

TEST(Routing, SharesTheSlotsOfSeveralSamplesAsDeepSpeedDoes)
{
  MoeSizes sizes = t_moe(4);
  sizes.routing.capacity_samples = 32;
  EXPECT_EQ(capacity_of(sizes), 640U);
  const OperatorGraph graph = graph_of(sizes, 4);
  EXPECT_EQ(graph.parameters(), 453'098'496U);
  EXPECT_NEAR(gflop(graph, 4), 2423, 0.5);
  for (const char* name : {"layer1.dispatch", "layer1.combine"}) {
    for (const auto& node : graph.operators) {
      if (node.name != name) continue;
      EXPECT_NEAR(node.forward.value / 4 / 1e9, 171.8, 0.05);
    }
  }
  EXPECT_THAT(tensor_of(graph, "layer1.dispatch").shape, ElementsAre(4, 16, 640, 1024));
  EXPECT_THAT(tensor_of(graph, "layer1.gating").shape, ElementsAre(128, 256, 16, 640));
  EXPECT_THAT(tensor_of(graph, "layer1.combine").shape, ElementsAre(128, 256, 1024));
  sizes.experts = 4096;
  sizes.capacity_factor = 1;
  EXPECT_EQ(capacity_of(sizes), 4U);  // at least
}

TEST(Routing, CountsTheClassTokenOfGroupsAndRoundsUp)
{
  MoeSizes sizes = vit(8, 1);
  sizes.routing.capacity_samples = 32;
  EXPECT_EQ(capacity_of(sizes), 163U);  // 1.25 * 32 * 65 / 16 = 162.5
  sizes.rounds_up = false;
  EXPECT_EQ(capacity_of(sizes), 163U);
}

TEST(Routing, ByIndexCopiesAllTokensWithoutWorkAndCountsThemFirst)
{
  MoeSizes sizes = bert(8, 2);
  sizes.routing = {32, true};
  const OperatorGraph graph = graph_of(sizes, 8);
  const double tokens = 2 * 32 * 8 * 128;
  const Tensor& slots = tensor_of(graph, "layer1.dispatch");
  EXPECT_EQ(elements_of(slots), tokens * 768);
  EXPECT_THAT(slots.shape, ElementsAre(8, 8, 1024, 768));
  const Tensor& counts = tensor_of(graph, "layer1.gating", 2);
  EXPECT_THAT(counts.shape, ElementsAre(8, 8));
  EXPECT_EQ(counts.size, Bytes(8 * 8 * 8));
  EXPECT_FALSE(graph.has_gradient(graph.operators[counts.producer].outputs[2]));
  EXPECT_TRUE(graph.has_gradient(graph.operators[counts.producer].outputs[1]));
  for (const auto& node : graph.operators) {
    const bool is_copy = node.kind == OperatorKind::Dispatch || node.kind == OperatorKind::Combine;
    if (is_copy) {
      EXPECT_EQ(node.forward + node.backward, Flops(0)) << node.name;
    } else if (node.kind == OperatorKind::Expert) {
      EXPECT_EQ(node.forward, Flops(2 * tokens * 768 * 3072)) << node.name;
    }
  }
}

}  // namespace
}  // namespace isobar::spmd::operator_graph_test

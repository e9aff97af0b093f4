#include "core/model/layer_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace isobar::layer_graph_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Layer i sends 10^i bytes forward and half of that back, does i + 1 FLOP and reads `inputs[i]`.
Workload workload_with(const std::vector<std::vector<std::size_t>>& inputs)
{
  Workload workload;
  workload.input = Bytes(7);
  double size = 1;
  for (const auto& of_layer : inputs) {
    Layer layer;
    layer.name = std::string(1, static_cast<char>('a' + workload.layers.size()));
    layer.forward = Flops(static_cast<double>(workload.layers.size() + 1));
    layer.backward = 2 * layer.forward;
    layer.parameters = 100;
    layer.activations = Bytes(1000);
    layer.sky_memory = Bytes(5);
    layer.output = Bytes(size);
    layer.gradient = Bytes(size / 2);
    layer.inputs = of_layer;
    workload.layers.push_back(layer);
    size *= 10;
  }
  return workload;
}

std::vector<double> values(const std::vector<Bytes>& sizes)
{
  std::vector<double> values;
  for (const auto size : sizes) values.push_back(size.value);
  return values;
}

TEST(BoundariesOf, AreTheOutputsOfAChain)
{
  const auto boundaries = boundaries_of(workload_with({{}, {0}, {1}}));
  EXPECT_THAT(values(boundaries.output), ElementsAre(7, 1, 10, 0));
  EXPECT_THAT(values(boundaries.gradient), ElementsAre(0, 0.5, 5, 0));
}

TEST(BoundariesOf, AResidualEdgeCrossesEveryCutUpToItsReader)
{
  const auto boundaries = boundaries_of(workload_with({{}, {0}, {1}, {2, 0}, {3}}));
  EXPECT_THAT(values(boundaries.output), ElementsAre(7, 1, 11, 101, 1000, 0));
  EXPECT_THAT(values(boundaries.gradient), ElementsAre(0, 0.5, 5.5, 50.5, 500, 0));
}

TEST(BoundariesOf, ATensorWithSeveralReadersCrossesOnce)
{
  const auto boundaries = boundaries_of(workload_with({{}, {0}, {0}, {1, 2}}));
  EXPECT_THAT(values(boundaries.output), ElementsAre(7, 1, 11, 110, 0));
}

TEST(BoundariesOf, DataThatALaterLayerReadsCrossesTheCutsBeforeIt)
{
  const auto boundaries = boundaries_of(workload_with({{}, {0}, {}, {1, 2}}));
  EXPECT_THAT(values(boundaries.output), ElementsAre(7, 7 + 1, 7 + 10, 110, 0));
  EXPECT_THAT(values(boundaries.gradient), ElementsAre(0, 0.5, 5, 55, 0));
}

TEST(BoundariesOf, AnOutputWithoutReadersCrossesNothing)
{
  const auto boundaries = boundaries_of(workload_with({{}, {0}, {0}}));
  EXPECT_THAT(values(boundaries.output), ElementsAre(7, 1, 1, 0));
}

TEST(BoundariesOf, FractionsOfBytesCancelOut)
{
  auto workload = workload_with({{}, {0}, {1, 0}, {2}, {3, 2}, {4}});
  for (auto& layer : workload.layers) layer.output = Bytes(0.1 * layer.output.value + 0.3);
  const auto& layers = workload.layers;
  const auto boundaries = boundaries_of(workload);
  EXPECT_EQ(boundaries.output[5], layers[4].output);
  EXPECT_EQ(boundaries.output[6], Bytes(0));
}

TEST(ChainCuts, AreBeforeEveryLayerOfAChainExceptTheFirst)
{
  EXPECT_THAT(chain_cuts(workload_with({{}, {0}, {1}, {2}})), ElementsAre(1, 2, 3));
  EXPECT_THAT(chain_cuts(workload_with({{}})), IsEmpty());
}

TEST(ChainCuts, LeaveOutWhatAResidualEdgeSpans)
{
  EXPECT_THAT(chain_cuts(workload_with({{}, {0}, {1}, {2, 0}, {3}})), ElementsAre(1, 4));
}

TEST(ChainCuts, AreWhereBranchesSplitAndAfterTheyMerge)
{
  EXPECT_THAT(chain_cuts(workload_with({{}, {0}, {0}, {1, 2}, {3}})), ElementsAre(1, 4));
}

TEST(ChainCuts, AreAbsentWhereALaterLayerReadsTheData)
{
  EXPECT_THAT(chain_cuts(workload_with({{}, {0}, {}, {1, 2}, {3}})), ElementsAre(4));
}

TEST(ChainCuts, AreAbsentNextToASecondResult)
{
  // c is a second result, which reads a: one tensor crosses after a, but a's and b's cross after b.
  EXPECT_THAT(chain_cuts(workload_with({{}, {0}, {0}, {1}})), ElementsAre(1));
}

TEST(ChainCuts, MayBeBetweenLayersThatShareAMatrix)
{
  auto workload = workload_with({{}, {0}, {1}, {2}, {3}});
  workload.layers[3].tied_to = 1;
  EXPECT_THAT(chain_cuts(workload), ElementsAre(1, 2, 3, 4));
}

TEST(ChainView, HasTheMatrixThatABlockUsesOfAnotherBlock)
{
  auto workload = workload_with({{}, {0}, {0}, {1, 2}, {3}, {4}, {4}, {5, 6}});
  workload.layers[2].tied_to = 1;  // of its own block
  workload.layers[2].tied_parameters = 30;
  workload.layers[6].tied_to = 2;
  workload.layers[6].tied_parameters = 40;
  const auto view = chain_view(workload);
  EXPECT_THAT(view.first_layer, ElementsAre(0, 1, 4, 5, 8));
  EXPECT_FALSE(view.workload.layers[1].tied_to);
  EXPECT_EQ(view.workload.layers[1].tied_parameters, 0U);
  EXPECT_EQ(view.workload.layers[3].tied_to, 1U);
  EXPECT_EQ(view.workload.layers[3].tied_parameters, 40U);
}

TEST(ChainView, IsTheChainItself)
{
  const auto workload = workload_with({{}, {0}, {1}});
  const auto view = chain_view(workload);
  EXPECT_EQ(workload_to_json(view.workload), workload_to_json(workload));
  EXPECT_THAT(view.first_layer, ElementsAre(0, 1, 2, 3));
}

TEST(ChainView, SumsTheLayersBetweenTwoCuts)
{
  auto workload = workload_with({{}, {0}, {1}, {2, 0}, {3}});
  for (auto& layer : workload.layers) layer.backward_weight = 0.5 * layer.forward;
  const auto view = chain_view(workload);
  EXPECT_THAT(view.first_layer, ElementsAre(0, 1, 4, 5));
  ASSERT_EQ(view.workload.layers.size(), 3u);
  EXPECT_TRUE(is_chain(view.workload));
  const auto& block = view.workload.layers[1];
  EXPECT_EQ(block.name, "b..d");
  EXPECT_EQ(block.forward, Flops(2 + 3 + 4));
  EXPECT_EQ(block.backward, Flops(2 * (2 + 3 + 4)));
  EXPECT_EQ(block.backward_weight, Flops(0.5 * (2 + 3 + 4)));
  EXPECT_EQ(block.parameters, 300u);
  EXPECT_EQ(block.activations, Bytes(3000));
  EXPECT_EQ(block.sky_memory, Bytes(15));
  EXPECT_EQ(block.output, Bytes(1000));
  EXPECT_EQ(block.gradient, Bytes(500));
  EXPECT_EQ(view.workload.layers[2].name, "e");
  EXPECT_EQ(view.workload.layers[2].output, Bytes(10000));
}

TEST(ChainView, IsCutOnlyBeforeLayersThatAreNamedAndWhereOneTensorCrosses)
{
  EXPECT_THAT(chain_view(workload_with({{}, {0}, {1}, {2}, {3}}), {0, 2, 3}).first_layer, ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(chain_view(workload_with({{}, {0}, {1}, {2, 0}, {3}}), {2, 4}).first_layer, ElementsAre(0, 4, 5));
}

TEST(ChainView, KeepsTheResultOfALastBlock)
{
  const auto view = chain_view(workload_with({{}, {0}, {0}, {1, 2}}));
  ASSERT_EQ(view.workload.layers.size(), 2u);
  EXPECT_EQ(view.workload.layers[1].name, "b..d");
  EXPECT_EQ(view.workload.layers[1].output, Bytes(1000));
}

/// The definition, without a graph algorithm: only one tensor crosses the cut, and every layer after it descends from
/// that tensor's layer, which is the last one before it.
std::vector<std::size_t> cuts_by_definition(const Workload& workload)
{
  const auto& layers = workload.layers;
  std::vector<std::size_t> cuts;
  for (std::size_t cut = 1; cut < layers.size(); ++cut) {
    bool alone = true;
    std::vector<bool> read(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (i >= cut && layers[i].inputs.empty()) alone = false;
      for (const auto input : layers[i].inputs) {
        read[input] = true;
        if (i >= cut && input < cut && input != cut - 1) alone = false;
      }
    }
    for (std::size_t i = 0; i + 1 < cut; ++i) alone = alone && read[i];
    if (alone && read[cut - 1]) cuts.push_back(cut);
  }
  return cuts;
}

TEST(ChainCuts, AgreeWithTheirDefinitionOnRandomGraphs)
{
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::vector<std::size_t>> inputs(1 + random() % 9);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      if (random() % 8 != 0) inputs[i].push_back(i - 1);
      if (random() % 4 == 0) inputs[i].push_back(random() % i);
    }
    const auto workload = workload_with(inputs);
    ASSERT_EQ(chain_cuts(workload), cuts_by_definition(workload)) << workload_to_json(workload);
  }
}

TEST(ChainView, OfAHundredThousandLayersNeedsNoDeepStack)
{
  std::vector<std::vector<std::size_t>> inputs(100'000);
  for (std::size_t i = 1; i < inputs.size(); ++i) inputs[i] = {i - 1};
  for (std::size_t i = 3; i < inputs.size(); i += 3) inputs[i].push_back(i - 3);
  auto workload = workload_with(inputs);
  for (auto& layer : workload.layers) layer.output = layer.gradient = Bytes(16);
  EXPECT_EQ(chain_cuts(workload).size(), 33'333u);
  EXPECT_EQ(chain_view(workload).workload.layers.size(), 33'334u);
}

}  // namespace
}  // namespace isobar::layer_graph_test

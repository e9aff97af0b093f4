#include "core/spmd/pieces.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace isobar::spmd::pieces_test {
namespace {

using ::testing::ElementsAre;

MoeSizes small_bert()
{
  MoeSizes sizes;
  sizes.trunk = Trunk::Bert;
  sizes.layers = 2;
  sizes.hidden = 48;
  sizes.heads = 6;
  sizes.intermediate = 96;
  sizes.sequence = 8;
  sizes.experts = 4;
  sizes.capacity_factor = 1.25;
  sizes.vocabulary = 100;
  return sizes;
}

std::size_t operator_named(const OperatorGraph& graph, const std::string& name)
{
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    if (graph.operators[i].name == name) return i;
  }
  return graph.operators.size();
}

TEST(Pieces, AreDividedByTheLargestRemainder)
{
  EXPECT_THAT(divided(10, {0.5, 0.3, 0.2}), ElementsAre(5, 3, 2));
  EXPECT_THAT(divided(7, {0.5, 0.3, 0.2}), ElementsAre(4, 2, 1));
  EXPECT_THAT(divided(5, {0.25, 0.25, 0.25, 0.25}), ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(divided(2, {0.25, 0.25, 0.25, 0.25}), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(divided(9, {0, 1, 0}), ElementsAre(0, 9, 0));
  EXPECT_THAT(divided(3, {0.45, 0, 0.55}), ElementsAre(1, 0, 2));
  for (const std::uint64_t devices : {3, 7, 49, 64}) {
    const std::vector<double> shares(devices, 1 / static_cast<double>(devices));
    for (const std::uint64_t units : {0, 1, 48, 63, 64, 1000}) {
      const auto counts = divided(units, shares);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}), units);
      EXPECT_LE(counts.front() - counts.back(), 1U);
    }
  }
}

TEST(Pieces, OfJoinedHeadsAreWholeHeads)
{
  const auto graph = make_operator_graph(small_bert(), 4, 4);
  const auto units = units_of_dimensions(graph);
  const auto& qkv = graph.operators[operator_named(graph, "layer0.qkv")];
  EXPECT_THAT(graph.tensors[qkv.outputs[0]].shape, ElementsAre(4, 8, 3, 48));
  EXPECT_THAT(units[qkv.outputs[0]], ElementsAre(4, 8, 3, 6));
  EXPECT_THAT(units[qkv.inputs[1]], ElementsAre(3, 6, 48));
  const auto& out = graph.operators[operator_named(graph, "layer0.out")];
  EXPECT_THAT(units[out.inputs[0]], ElementsAre(4, 8, 6));
  EXPECT_THAT(units[out.outputs[0]], ElementsAre(4, 8, 48));
  const Pieces pieces(graph, {0.5, 0.3, 0.2});
  EXPECT_EQ(pieces.size(qkv.inputs[1], gather(1), 1), Bytes(4.0 * 3 * 16 * 48));
}

TEST(Pieces, HaveThePartOfAnOperatorThatItsSlicesHave)
{
  const auto graph = make_operator_graph(small_bert(), 4, 4);
  const Pieces pieces(graph, {0.5, 0.25, 0.25});
  const auto& linear = graph.operators[operator_named(graph, "layer0.linear1")];
  EXPECT_EQ(pieces.part(linear, {{gather(0), full, full}, {gather(0)}}, 0), 0.5);
  EXPECT_EQ(pieces.part(linear, {{full, gather(0), gather(0)}, {gather(2)}}, 2), 0.25);
  EXPECT_EQ(pieces.part(linear, {{full, full, full}, {full}}, 1), 1);
  EXPECT_EQ(pieces.part(linear, {{reduce, full, reduce}, {reduce}}, 1), 1);
}

TEST(Pieces, OverlapWithThoseOfOtherSharesInAllOfThem)
{
  const auto graph = make_operator_graph(small_bert(), 4, 4);
  const std::size_t tensor = graph.operators[operator_named(graph, "layer0.norm2")].outputs[0];
  ASSERT_THAT(graph.tensors[tensor].shape, ElementsAre(4, 8, 48));
  const Pieces halves(graph, {0.5, 0.5});
  const Pieces uneven(graph, {0.25, 0, 0.75});
  const Bytes sample = graph.tensors[tensor].size / 4;
  EXPECT_EQ(halves.overlap(tensor, gather(0), 0, uneven, 0), sample);
  EXPECT_EQ(halves.overlap(tensor, gather(0), 0, uneven, 1), Bytes(0));
  EXPECT_EQ(halves.overlap(tensor, gather(0), 0, uneven, 2), sample);
  EXPECT_EQ(halves.overlap(tensor, gather(0), 1, uneven, 0), Bytes(0));
  EXPECT_EQ(halves.overlap(tensor, gather(0), 1, uneven, 2), 2 * sample);
  const Pieces others(graph, {0.3, 0.1, 0.2, 0.4});
  for (std::uint8_t dimension = 0; dimension < 3; ++dimension) {
    for (std::size_t i = 0; i < others.devices(); ++i) {
      Bytes all;
      for (std::size_t k = 0; k < uneven.devices(); ++k) {
        all += others.overlap(tensor, gather(dimension), i, uneven, k);
        EXPECT_EQ(others.overlap(tensor, gather(dimension), i, uneven, k),
                  uneven.overlap(tensor, gather(dimension), k, others, i));
      }
      EXPECT_EQ(all, others.size(tensor, gather(dimension), i));
    }
  }
}

TEST(PartOfSamples, HasThatPartOfAllWorkAndNoneOfTheParameters)
{
  const auto graph = make_operator_graph(small_bert(), 8, 4);
  const auto part = over_part_of_samples(graph, 4);
  const auto expected = make_operator_graph(small_bert(), 2, 4);
  ASSERT_EQ(part.tensors.size(), expected.tensors.size());
  EXPECT_EQ(samples_of(part), 2U);
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    EXPECT_EQ(part.tensors[i].shape, expected.tensors[i].shape) << part.tensors[i].name;
    EXPECT_EQ(part.tensors[i].size, expected.tensors[i].size);
  }
  for (std::size_t i = 0; i < part.operators.size(); ++i) {
    EXPECT_EQ(part.operators[i].forward, expected.operators[i].forward) << part.operators[i].name;
    EXPECT_EQ(part.operators[i].backward, expected.operators[i].backward);
    EXPECT_EQ(part.operators[i].backward_weight, expected.operators[i].backward_weight);
    EXPECT_EQ(part.operators[i].kept, expected.operators[i].kept);
  }
}

}  // namespace
}  // namespace isobar::spmd::pieces_test

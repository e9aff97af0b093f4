#include "core/spmd/division.hpp"

#include "core/spmd/pieces.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::spmd::division_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

OperatorGraph dense()
{
  MoeSizes sizes;
  sizes.hidden = 12;
  sizes.heads = 3;
  sizes.intermediate = 24;
  sizes.sequence = 4;
  return make_operator_graph(sizes, 6, 4);
}

/// Every operator computed as a whole on every device, all in one part but the loss.
Division whole(const OperatorGraph& graph)
{
  Division division;
  division.parts = {0, graph.operators.size() - 1};
  for (const auto& node : graph.operators) {
    const auto known = signatures_of(graph, node, Rules::Corrected);
    division.signatures.push_back(node.kind == OperatorKind::Parameter ? known.front() : known.back());
  }
  return division;
}

std::size_t index_of(const OperatorGraph& graph, const std::string& name)
{
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    if (graph.operators[i].name == name) return i;
  }
  throw std::logic_error(name);
}

TEST(Pieces, OfAProjectionAreWholeHeads)
{
  const auto graph = dense();
  const Pieces pieces(graph, {0.6, 0.4});
  const auto parts = [&](std::size_t tensor, std::uint8_t dimension) {
    return std::vector<double>{pieces.part(tensor, gather(dimension), 0), pieces.part(tensor, gather(dimension), 1)};
  };
  const auto& qkv = graph.operators[index_of(graph, "layer0.qkv")];
  const auto& out = graph.operators[index_of(graph, "layer0.out")];
  const std::vector<double> heads = {2.0 / 3, 1.0 / 3};
  EXPECT_EQ(parts(qkv.outputs[0], 3), heads);
  EXPECT_EQ(parts(qkv.inputs[1], 1), heads);
  EXPECT_EQ(parts(qkv.inputs[1], 2), (std::vector<double>{7.0 / 12, 5.0 / 12}));
  EXPECT_EQ(parts(out.inputs[0], 2), heads);
  EXPECT_EQ(parts(out.inputs[1], 1), heads);
}

TEST(SignatureTexts, AreReadAsTheyAreWritten)
{
  const auto graph = dense();
  for (const auto& node : graph.operators) {
    for (const auto& signature : signatures_of(graph, node, Rules::Corrected)) {
      EXPECT_EQ(signature_from_text(text_of(signature)), signature);
    }
  }
  EXPECT_EQ(text_of({{gather(0), full}, {reduce}}), "gather0 full -> reduce");
  for (const char* wrong : {"", "full", "gather9 -> full", "full -> fulls", "full->", "-> gather"}) {
    const auto read = signature_from_text(wrong);
    EXPECT_TRUE(!read || text_of(*read) != wrong) << wrong;
  }
}

TEST(Divisions, OfWholeOperatorsReformParametersForFree)
{
  const auto graph = dense();
  const auto division = whole(graph);
  EXPECT_THAT(faults_of(graph, division, Rules::Corrected), IsEmpty());
  for (const auto& reform : reforms_of(graph, division, Rules::Corrected)) {
    const bool is_of_loss = reform.tensor == graph.operators.back().inputs[0];
    EXPECT_EQ(reform.is_parameter, !is_of_loss);
    EXPECT_EQ(reform.forward, is_of_loss ? ReformKind::Select : ReformKind::Replicate);
    EXPECT_EQ(reform.part, is_of_loss ? 1 : 0);
  }
}

TEST(Divisions, NameTheOperatorThatCannotBeDividedSo)
{
  const auto graph = dense();
  auto division = whole(graph);
  const auto linear = index_of(graph, "layer0.linear1");
  division.signatures[linear].outputs[0] = gather(1);
  EXPECT_THAT(
      faults_of(graph, division, Rules::Corrected),
      testing::Contains(testing::HasSubstr("layer0.linear1: cannot be divided as full full full -> gather1; use ")));

  division = whole(graph);
  division.parts = {0};
  EXPECT_THAT(
      faults_of(graph, division, Rules::Corrected),
      ElementsAre("head.output: reads head.sum as reduce in the part that makes it as full; begin a part between "
                  "them"));

  division = whole(graph);
  division.parts = {0, 5, 5};
  EXPECT_THAT(faults_of(graph, division, Rules::Corrected), testing::SizeIs(1));
}

TEST(Divisions, ReformATensorOnce)
{
  const auto graph = dense();
  auto division = whole(graph);
  // The layer's input, whole, is read in slices of samples by attention and in slices of tokens by the addition.
  const auto qkv = index_of(graph, "layer0.qkv");
  const auto add = index_of(graph, "layer0.add1");
  division.signatures[qkv] = {{gather(0), full, full}, {gather(0)}};
  division.signatures[add] = {{gather(1), gather(1)}, {gather(1)}};
  EXPECT_THAT(faults_of(graph, division, Rules::Corrected),
              testing::Contains("layer0.add1: reads embedding.x as gather1; it is full, and is gather0 after its one "
                                "reform"));
}

/// All operators by samples, with replicated parameters, in a part for each; groups begin with these operators.
Division by_samples(const OperatorGraph& graph, const std::vector<std::string>& groups)
{
  Division division;
  const auto samples = sample_dimensions(graph);
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const auto& node = graph.operators[i];
    division.parts.push_back(i);
    for (const auto& name : groups) {
      if (name == node.name) division.groups.push_back(i);
    }
    const auto known = signatures_of(graph, node, Rules::Corrected);
    const auto found = std::find_if(known.begin(), known.end(), [&](const Signature& each) {
      if (node.kind == OperatorKind::Parameter) return each.outputs[0] == replicate;
      if (node.kind == OperatorKind::Data) return each.outputs[0] == gather(0);
      return !each.inputs.empty() &&
             (node.kind == OperatorKind::Output || each.inputs[0] == gather(*samples[node.inputs[0]]));
    });
    division.signatures.push_back(found == known.end() ? known.front() : *found);
  }
  return division;
}

TEST(Divisions, OfGroupsPassSlicesToTheNextOne)
{
  const auto graph = dense();
  const std::string linear1 = "layer0.linear1.weight";
  const Division division = by_samples(graph, {linear1, "layer0.norm2.weight"});
  EXPECT_THAT(faults_of(graph, division, Rules::Corrected), IsEmpty());
  EXPECT_EQ(division.group_of(division.groups[1] - 1), 0U);
  EXPECT_EQ(division.group_of(division.groups[1]), 1U);
  EXPECT_EQ(division.end_of_group(0), division.groups[1]);
  EXPECT_EQ(division.end_of_group(2), division.parts.size());
  const auto reforms = reforms_of(graph, division, Rules::Corrected);
  EXPECT_TRUE(std::all_of(reforms.begin(), reforms.end(), [](const auto& each) { return each.is_parameter; }));
}

TEST(Divisions, NameWhatCannotPassBetweenGroups)
{
  const auto graph = dense();
  const auto faults = [&](const std::vector<std::string>& groups) {
    return faults_of(graph, by_samples(graph, groups), Rules::Corrected);
  };
  EXPECT_THAT(
      faults({"layer0.linear1"}),
      ElementsAre("layer0.linear1: reads layer0.linear1.weight, which is in another stage; a parameter is in the "
                  "stage that reads it",
                  "layer0.linear1: reads layer0.linear1.bias, which is in another stage; a parameter is in the "
                  "stage that reads it"));
  EXPECT_THAT(faults({"layer0.linear1.weight", "layer0.relu"}),
              ElementsAre("layer0.add2: reads layer0.norm1, which is made 2 stages before; the next stage is the last "
                          "one that reads a tensor"));
  EXPECT_THAT(
      faults({"layer0.qkv.weight"}),
      ElementsAre("layer0.qkv.weight: begins a stage that reads nothing of the one before; begin it elsewhere"));
  EXPECT_THAT(faults({"head.output"}),
              ElementsAre("head.output: reads head.sum, which the stage before makes reduce; only slices pass between "
                          "stages"));
}

}  // namespace
}  // namespace isobar::spmd::division_test

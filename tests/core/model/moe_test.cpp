#include "core/errors.hpp"
#include "core/model/workload.hpp"
#include "core/spmd/operator_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace isobar {
namespace {

constexpr auto small = R"(model: moe
trunk: plain
layers: 4
hidden: 64
heads: 4
experts: 4
sequence: 32
micro_batch: 16
)";

Workload shipped(const std::string& name)
{
  return read_workload(std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads" / (name + ".yaml"));
}

Workload read(const std::string& text)
{
  return workload_from_text(text, "x.yaml");
}

std::string with(const std::string& line, const std::string& other)
{
  std::string text = small;
  return text.replace(text.find(line), line.size(), other);
}

std::string fault_of(const std::string& text)
{
  try {
    read(text);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "accepted";
}

std::vector<std::string> names_of(const Workload& workload)
{
  std::vector<std::string> names;
  for (const auto& layer : workload.layers) names.push_back(layer.name);
  return names;
}

TEST(MoeWorkload, HasTheSumsOfItsOperatorsInEachLayer)
{
  for (const std::string more : {"", "parity: true\n"}) {
    const Workload workload = read(small + more);
    EXPECT_THAT(names_of(workload), testing::ElementsAre("embedding", "layer0", "layer1", "layer2", "layer3", "head"));
    const auto graph = spmd::make_operator_graph(std::get<spmd::MoeSizes>(workload.model), 16, 4);
    std::vector<Layer> sums(workload.layers.size());
    for (const auto& node : graph.operators) {
      sums[node.layer].forward += node.forward;
      sums[node.layer].backward += node.backward;
      sums[node.layer].backward_weight += node.backward_weight;
      sums[node.layer].activations += node.kept;
    }
    std::uint64_t parameters = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const Layer& layer = workload.layers[i];
      EXPECT_EQ(layer.forward, sums[i].forward) << layer.name;
      EXPECT_EQ(layer.backward, sums[i].backward) << layer.name;
      EXPECT_EQ(layer.backward_weight, sums[i].backward_weight) << layer.name;
      EXPECT_EQ(layer.activations, sums[i].activations) << layer.name;
      EXPECT_EQ(layer.inputs, i == 0 ? std::vector<std::size_t>{} : std::vector<std::size_t>{i - 1});
      parameters += layer.parameters;
    }
    EXPECT_EQ(parameters, graph.parameters());
  }
}

TEST(MoeWorkload, PassesHiddenStatesFromLayerToLayer)
{
  const Workload workload = read(small);
  const Bytes state(4.0 * 16 * 32 * 64);
  for (std::size_t i = 0; i + 1 < workload.layers.size(); ++i) EXPECT_EQ(workload.layers[i].output, state);
  EXPECT_EQ(workload.input, state);
  EXPECT_EQ(workload.layers[0].gradient, Bytes(0)) << "the data have none";
  EXPECT_EQ(workload.layers[1].gradient, state);
  EXPECT_EQ(workload.layers[5].output, Bytes(4)) << "the loss";
}

TEST(MoeWorkload, OfBertReadsTokensAndPassesNoMask)
{
  const std::string text = with("plain", "bert") + "vocabulary: 100\n";
  for (const std::string more : {"", "parity: true\n"}) {
    const Workload workload = read(text + more);
    EXPECT_EQ(workload.input, Bytes(8.0 * 16 * 32));
    EXPECT_EQ(workload.layers[0].output, Bytes(4.0 * 16 * 32 * 64));
    EXPECT_EQ(workload.layers[0].parameters, 100U * 64);
    EXPECT_EQ(workload.layers[5].parameters, 100U * 64 + 100);
  }
}

TEST(MoeWorkload, OfVitHasATokenForEachPatchAndOneForTheClass)
{
  const Workload workload = read(with("sequence: 32\n", "image: 32\npatch: 4\nclasses: 10\n").replace(18, 5, "vit"));
  EXPECT_EQ(workload.sequence, 65U);
  EXPECT_EQ(workload.input, Bytes(4.0 * 16 * 3 * 32 * 32));
  EXPECT_EQ(workload.layers[0].parameters, 3U * 4 * 4 * 64 + 64 + 64 + 65 * 64);
  EXPECT_EQ(workload.layers[5].parameters, 64U * 10 + 10);
}

TEST(MoeWorkload, IsDenseWithoutExperts)
{
  const Workload workload = read(with("experts: 4\n", ""));
  EXPECT_EQ(workload.layers[1].parameters, workload.layers[2].parameters);
}

TEST(MoeWorkload, IsShippedAsThePublishedTMoe)
{
  const auto parameters = [](const Workload& workload) {
    std::uint64_t sum = 0;
    for (const auto& layer : workload.layers) sum += layer.parameters;
    return sum;
  };
  EXPECT_EQ(parameters(shipped("tmoe_parity_4")), 453'098'496U);
  EXPECT_EQ(parameters(shipped("tmoe_parity_8")), 855'800'832U);
  EXPECT_TRUE(std::get<spmd::MoeSizes>(shipped("tmoe_parity_4").model).parity);
}

TEST(MoeWorkload, IsMadeAgainForOtherMicroBatches)
{
  const Workload workload = with_micro_batch(read(small), 8);
  const Workload wanted = read(with("micro_batch: 16", "micro_batch: 8"));
  ASSERT_EQ(workload.layers.size(), wanted.layers.size());
  for (std::size_t i = 0; i < wanted.layers.size(); ++i)
    EXPECT_EQ(workload.layers[i].forward, wanted.layers[i].forward);
}

TEST(MoeWorkload, NamesTheKeyOfAFault)
{
  EXPECT_EQ(fault_of(with("plain", "t5")), "x.yaml:2: trunk: \"t5\" is not one of plain, bert, vit");
  EXPECT_EQ(fault_of(with("heads: 4", "heads: 5")),
            "x.yaml:5: heads: 5 does not divide hidden, 64; write a divisor of it");
  EXPECT_EQ(fault_of(with("experts: 4\n", "top_k: 2\n")),
            "x.yaml:6: top_k: goes with experts; leave it out, or write experts");
  EXPECT_EQ(fault_of(with("experts: 4\n", "experts: 1\ntop_k: 2\n")),
            "x.yaml:7: top_k: 2 is more than the 1 experts; write at most as many");
  EXPECT_EQ(fault_of(with("experts: 4\n", "experts: 64\ncapacity_rounding: down\n")),
            "x.yaml:7: capacity_rounding: down leaves no slot for a sample in an expert; write up, or a larger "
            "capacity_factor");
  EXPECT_EQ(fault_of(std::string(small) + "parity: true\ndtype: bf16\n"),
            "x.yaml:9: parity: the published graph is in float32, not in bf16; leave dtype out");
  EXPECT_THAT(fault_of(std::string(small) + "vocabulary: 10\n"),
              testing::StartsWith("x.yaml:9: vocabulary: unknown key; the keys here are "));
  EXPECT_EQ(fault_of(with("hidden: 64", "hidden: 1048576")),
            "x.yaml:3: layers: have about 1.58e+14 parameters; write sizes with at most 1e+13");
}

}  // namespace
}  // namespace isobar

#include "core/errors.hpp"
#include "core/model/routing.hpp"
#include "core/model/workload.hpp"
#include "core/spmd/operator_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace isobar::moe_test {
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

TEST(MoeWorkload, SharesSlotsAmongSamplesOrHasNone)
{
  const auto slots = [](const Workload& workload) {
    return spmd::capacity_of(std::get<spmd::MoeSizes>(workload.model));
  };
  EXPECT_EQ(slots(read(small)), 10U);
  const Workload grouped = read(std::string(small) + "capacity_samples: 8\n");
  EXPECT_EQ(routing_of(grouped), (spmd::Routing{8, false}));
  EXPECT_EQ(slots(grouped), 80U);
  const Workload by_index = read(std::string(small) + "by_index: true\n");
  EXPECT_EQ(routing_of(by_index), (spmd::Routing{1, true}));
  EXPECT_LT(by_index.layers[2].forward, read(small).layers[2].forward);
  EXPECT_EQ(text_of({8, false}, grouped), "80 slots for 8 samples");
  EXPECT_EQ(text_of({1, false}, grouped), "10 slots for a sample");
  EXPECT_EQ(text_of({1, true}, grouped), "all tokens, by index");
}

TEST(MoeWorkload, IsMadeAgainForAnotherRouting)
{
  const Workload workload = with_routing(read(small), {4, false}, 8);
  const Workload wanted = read(with("micro_batch: 16", "micro_batch: 8\ncapacity_samples: 4"));
  EXPECT_EQ(workload_to_json(workload), workload_to_json(wanted));
  EXPECT_EQ(workload_to_json(with_routing(workload, {}, 16)), workload_to_json(read(small)));
}

TEST(MoeWorkload, SaysWhyItCannotHaveARouting)
{
  const Workload workload = read(small);
  EXPECT_EQ(fault_of_routing(workload, {4, true}, 8), std::nullopt);
  EXPECT_EQ(fault_of_routing(workload, {3, false}, 8), "capacity_samples: 3 do not divide the 8 of a micro-batch");
  EXPECT_EQ(fault_of_routing(read(std::string(small) + "parity: true\n"), {1, true}, 8),
            "by_index: the published graph of parity has slots");
  EXPECT_EQ(fault_of_routing(read(with("experts: 4\n", "")), {}, 8), "workload x has no experts; leave it out");
}

TEST(MoeWorkload, NamesTheKeyOfAFault)
{
  EXPECT_EQ(fault_of(std::string(small) + "capacity_samples: 5\n"),
            "x.yaml:9: capacity_samples: 5 do not divide the 16 of a micro-batch; write a divisor");
  EXPECT_EQ(fault_of(with("experts: 4\n", "by_index: true\n")),
            "x.yaml:6: by_index: goes with experts; leave it out, or write experts");
  EXPECT_EQ(fault_of(std::string(small) + "by_index: true\nparity: true\n"),
            "x.yaml:9: by_index: the published graph of parity has slots; leave one of them out");
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
}  // namespace isobar::moe_test

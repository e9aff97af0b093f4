#include "core/spmd/signature.hpp"
#include "tests/core/spmd/plain_operators.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace isobar::spmd::signature_test {
namespace {

using plain::Array;
using ::testing::ElementsAre;

/// Small sizes that `devices` divide.
MoeSizes small_sizes(std::uint64_t devices)
{
  MoeSizes sizes;
  sizes.layers = 2;
  sizes.hidden = 4 * devices;
  sizes.heads = 2 * devices;  // of width 2
  sizes.intermediate = 2 * devices;
  sizes.sequence = 2 * devices;
  sizes.experts = devices;
  sizes.capacity_factor = static_cast<double>(devices) / 2;
  sizes.vocabulary = 3 * devices;
  sizes.image = 8;
  sizes.patch = 4;
  sizes.classes = 3 * devices;
  return sizes;
}

OperatorGraph small_graph(bool parity, Trunk trunk = Trunk::Plain, std::uint64_t devices = 2)
{
  MoeSizes sizes = small_sizes(devices);
  sizes.parity = parity;
  sizes.trunk = trunk;
  if (trunk == Trunk::Vit) sizes.sequence = patches_of(sizes) + 1;
  return make_operator_graph(sizes, devices, 4);
}

const Operator& named(const OperatorGraph& graph, const std::string& name)
{
  return *std::find_if(graph.operators.begin(), graph.operators.end(),
                       [&](const Operator& node) { return node.name == name; });
}

std::string in_words(const Signature& signature)
{
  std::vector<std::string> inputs, outputs;
  for (const Form form : signature.inputs) inputs.push_back(name_of(form));
  for (const Form form : signature.outputs) outputs.push_back(name_of(form));
  return fmt::format("{} -> {}", fmt::join(inputs, " "), fmt::join(outputs, " "));
}

std::vector<std::string> signatures(const OperatorGraph& graph, const std::string& name, Rules rules)
{
  std::vector<std::string> texts;
  for (const auto& signature : signatures_of(graph, named(graph, name), rules)) texts.push_back(in_words(signature));
  return texts;
}

Array random_array(const Tensor& tensor, std::mt19937& random)
{
  Array array(std::vector<std::size_t>(tensor.shape.begin(), tensor.shape.end()));
  std::uniform_real_distribution<double> number(-1, 1);
  for (auto& value : array.numbers) value = number(random);
  return array;
}

/// What each device holds of an array.
std::vector<Array> divided(const Array& whole, Form form, std::size_t devices, std::mt19937& random)
{
  std::vector<Array> parts(devices, whole);
  if (form.kind == Form::Kind::Gather) {
    auto shape = whole.shape;
    shape[form.dimension] /= devices;
    for (std::size_t device = 0; device < devices; ++device) {
      parts[device] = Array(shape);
      plain::for_each_index(shape, [&](std::vector<std::size_t> index) {
        double& number = parts[device].at(index);
        index[form.dimension] += device * shape[form.dimension];
        number = whole.at(index);
      });
    }
  }
  if (form.kind == Form::Kind::Reduce) {
    std::uniform_real_distribution<double> number(-1, 1);
    for (std::size_t i = 0; i < whole.numbers.size(); ++i) {
      for (std::size_t device = 1; device < devices; ++device) {
        parts[device].numbers[i] = number(random);
        parts[0].numbers[i] -= parts[device].numbers[i];
      }
    }
  }
  return parts;
}

/// Whether the devices' parts are those of the array in this form.
bool is_divided(const Array& whole, const std::vector<Array>& parts, Form form)
{
  const auto is_near = [](const Array& a, const Array& b) {
    return a.shape == b.shape && std::equal(a.numbers.begin(), a.numbers.end(), b.numbers.begin(),
                                            [](double x, double y) { return std::abs(x - y) < 1e-9; });
  };
  if (form.kind == Form::Kind::Reduce) {
    Array sum = parts[0];
    for (std::size_t device = 1; device < parts.size(); ++device) {
      if (parts[device].shape != sum.shape) return false;
      for (std::size_t i = 0; i < sum.numbers.size(); ++i) sum.numbers[i] += parts[device].numbers[i];
    }
    return is_near(sum, whole);
  }
  std::mt19937 unused;
  const auto wanted = divided(whole, form, parts.size(), unused);
  return std::equal(parts.begin(), parts.end(), wanted.begin(), is_near);
}

/// Whether devices that compute an operator on parts have the parts of its outputs.
bool is_right(const OperatorGraph& graph, const Operator& node, const Signature& signature, std::size_t devices)
{
  std::mt19937 random(1);
  std::vector<Array> inputs;
  std::vector<std::vector<Array>> parts(devices);
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    inputs.push_back(random_array(graph.tensors[node.inputs[k]], random));
    const auto divided_input = divided(inputs.back(), signature.inputs[k], devices, random);
    for (std::size_t device = 0; device < devices; ++device) parts[device].push_back(divided_input[device]);
  }
  const auto whole = plain::compute(node, inputs);
  for (std::size_t k = 0; k < whole.size(); ++k) {
    std::vector<Array> outputs;
    for (const auto& of_device : parts) outputs.push_back(plain::compute(node, of_device)[k]);
    if (!is_divided(whole[k], outputs, signature.outputs[k])) return false;
  }
  return true;
}

/// Whether the devices' gradients of the inputs are those of one device, in the forms that gradient_form gives.
bool has_right_gradients(const OperatorGraph& graph, const Operator& node, const Signature& signature,
                         std::size_t devices)
{
  std::mt19937 random(2);
  std::vector<Array> inputs;
  std::vector<std::vector<Array>> parts(devices);
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    inputs.push_back(random_array(graph.tensors[node.inputs[k]], random));
    const auto divided_input = divided(inputs.back(), signature.inputs[k], devices, random);
    for (std::size_t device = 0; device < devices; ++device) parts[device].push_back(divided_input[device]);
  }
  const Array output = random_array(graph.tensors[node.outputs[0]], random);
  const auto outputs = divided(output, gradient_form(signature.outputs[0]), devices, random);
  const auto whole = plain::gradients(node, inputs, output);
  for (std::size_t k = 0; k < whole.size(); ++k) {
    std::vector<Array> found;
    for (std::size_t device = 0; device < devices; ++device) {
      found.push_back(plain::gradients(node, parts[device], outputs[device])[k]);
    }
    if (!is_divided(whole[k], found, gradient_form(signature.inputs[k]))) return false;
  }
  return true;
}

const std::set<OperatorKind> computed = {
    OperatorKind::Dropout,   OperatorKind::Embedding,    OperatorKind::NllSum,     OperatorKind::Convolution,
    OperatorKind::Flatten,   OperatorKind::PrependClass, OperatorKind::TakeClass,  OperatorKind::Linear,
    OperatorKind::QkvLinear, OperatorKind::Scores,       OperatorKind::Context,    OperatorKind::Dispatch,
    OperatorKind::Expert,    OperatorKind::Combine,      OperatorKind::Transpose,  OperatorKind::Sum,
    OperatorKind::Add,       OperatorKind::Relu,         OperatorKind::Softmax,    OperatorKind::LayerNorm,
    OperatorKind::Scale,     OperatorKind::LogSoftmax,   OperatorKind::SplitHeads, OperatorKind::MergeHeads};

/// Whether each device gets a slice of the same size.
bool divides(std::uint64_t devices, const OperatorGraph& graph, const Operator& node, const Signature& signature)
{
  const auto all_divided = [&](const std::vector<std::size_t>& tensors, const std::vector<Form>& forms) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (forms[i].kind != Form::Kind::Gather) continue;
      if (graph.tensors[tensors[i]].shape[forms[i].dimension] % devices != 0) return false;
    }
    return true;
  };
  return all_divided(node.inputs, signature.inputs) && all_divided(node.outputs, signature.outputs);
}

TEST(Signatures, OfOurRulesComputeOutputsAndGradientsOfOneDevice)
{
  for (const std::uint64_t devices : {2, 3, 4}) {
    std::set<OperatorKind> judged;
    for (const Trunk trunk : {Trunk::Plain, Trunk::Bert, Trunk::Vit}) {
      const OperatorGraph graph = small_graph(false, trunk, devices);
      for (const auto& node : graph.operators) {
        if (computed.count(node.kind) == 0) continue;
        judged.insert(node.kind);
        for (const auto& signature : signatures_of(graph, node, Rules::Corrected)) {
          if (!divides(devices, graph, node, signature)) continue;
          EXPECT_TRUE(is_right(graph, node, signature, devices)) << node.name << ": " << in_words(signature);
          EXPECT_TRUE(has_right_gradients(graph, node, signature, devices)) << node.name << ": " << in_words(signature);
        }
      }
    }
    EXPECT_EQ(judged, computed);
  }
}

TEST(Signatures, OfThePublishedTableAreRightExceptCombineByTokens)
{
  const OperatorGraph graph = small_graph(true);
  std::vector<std::string> wrong;
  for (const char* name : {"layer0.linear1", "layer0.relu", "layer0.add1", "layer0.norm1", "layer0.q",
                           "layer1.dispatch", "layer1.expert1", "layer1.expert2", "layer1.combine", "head.sum"}) {
    const Operator& node = named(graph, name);
    for (const auto& signature : signatures_of(graph, node, Rules::Published)) {
      if (!is_right(graph, node, signature, 2)) wrong.push_back(node.name + ": " + in_words(signature));
    }
  }
  EXPECT_THAT(wrong, ElementsAre("layer1.combine: full gather2 -> gather1"));
}

TEST(Signatures, OfThePublishedHeadSplitAreNotThoseOfItsParts)
{
  // In parts, attention by heads begins with a product of the whole input and weights divided by heads, and its last
  // bias is an addend.
  const OperatorGraph ours = small_graph(false);
  EXPECT_THAT(signatures(ours, "layer0.qkv", Rules::Corrected), testing::Contains("full gather1 gather1 -> gather3"));
  EXPECT_THAT(signatures(ours, "layer0.out", Rules::Corrected), testing::Contains("gather2 gather1 reduce -> reduce"));
  const Operator& out = named(ours, "layer0.out");
  EXPECT_FALSE(is_right(ours, out, {{gather(2), gather(1), full}, {reduce}}, 2)) << "the bias counts twice";
  EXPECT_FALSE(has_right_gradients(ours, out, {{gather(2), gather(1), full}, {reduce}}, 2)) << "so does its gradient";
  const Operator& qkv = named(ours, "layer0.qkv");
  EXPECT_FALSE(is_right(ours, qkv, {{gather(2), gather(1), gather(1)}, {gather(3)}}, 2)) << "it adds up over the input";
  EXPECT_THAT(signatures(small_graph(true), "layer0.attention", Rules::Published),
              ElementsAre("gather1 gather1 gather1 full full full full -> gather1 gather0",
                          "gather2 gather2 gather2 gather0 gather0 gather1 full -> reduce reduce",
                          "full full full full full full full -> full full"));
}

TEST(Signatures, OfThePublishedTableComeInItsOrder)
{
  const OperatorGraph graph = small_graph(true);
  const auto published = [&](const char* name) { return signatures(graph, name, Rules::Published); };
  EXPECT_THAT(published("embedding.x"), ElementsAre(" -> gather0", " -> full"));
  EXPECT_THAT(published("layer0.in.weight"), ElementsAre(" -> replicate", " -> gather0", " -> gather1"));
  EXPECT_THAT(published("layer0.linear1"), ElementsAre("gather0 full full -> gather0", "gather1 full full -> gather1",
                                                       "full gather0 gather0 -> gather2", "full full full -> full"));
  EXPECT_THAT(published("layer0.q"), ElementsAre("gather0 -> gather1", "gather1 -> gather0", "gather2 -> gather2",
                                                 "reduce -> reduce", "full -> full"));
  EXPECT_THAT(published("layer0.add1"), ElementsAre("gather0 gather0 -> gather0", "gather1 gather1 -> gather1",
                                                    "gather2 gather2 -> gather2", "full full -> full"));
  EXPECT_THAT(published("layer0.norm1"),
              ElementsAre("gather0 full full -> gather0", "gather1 full full -> gather1", "full full full -> full"));
  EXPECT_THAT(published("layer1.gating"), ElementsAre("gather0 full -> gather0 gather0", "full full -> full full"));
  EXPECT_THAT(published("layer1.dispatch"),
              ElementsAre("gather0 gather0 -> gather0", "gather1 gather1 -> reduce", "gather2 full -> gather3",
                          "full gather2 -> gather1", "full gather3 -> gather2", "full full -> full"));
  EXPECT_THAT(published("layer1.expert1"),
              ElementsAre("gather0 gather1 -> gather1", "gather1 gather3 -> reduce", "gather2 full -> gather3",
                          "full gather0 -> gather0", "full gather2 -> gather2", "full full -> full"));
  EXPECT_THAT(published("layer1.combine"),
              ElementsAre("gather0 gather0 -> gather0", "gather1 gather2 -> reduce", "gather2 gather3 -> reduce",
                          "gather3 full -> gather2", "full gather2 -> gather1", "full full -> full"));
  EXPECT_THAT(published("head.sum"), ElementsAre("gather0 -> reduce", "gather1 -> reduce", "gather2 -> reduce",
                                                 "reduce -> reduce", "full -> full"));
  EXPECT_THAT(published("head.output"), ElementsAre("reduce -> "));
}

TEST(Signatures, OfThePublishedTrunksComeInItsOrder)
{
  const OperatorGraph bert = small_graph(true, Trunk::Bert);
  EXPECT_THAT(signatures(bert, "embedding.embedding", Rules::Published),
              ElementsAre("gather0 full -> gather0", "gather1 full -> gather1", "full gather1 -> gather2",
                          "full full -> full"));
  EXPECT_THAT(signatures(bert, "embedding.add", Rules::Published),
              ElementsAre("gather0 full -> gather0", "gather1 gather1 -> gather1", "gather2 gather2 -> gather2",
                          "full full -> full"));
  EXPECT_THAT(signatures(bert, "embedding.mask", Rules::Published), ElementsAre(" -> replicate"));
  EXPECT_THAT(signatures(bert, "head.nll_sum", Rules::Published),
              ElementsAre("gather0 gather0 -> reduce", "gather2 gather1 -> reduce", "full full -> full"));
  const OperatorGraph vit = small_graph(true, Trunk::Vit);
  EXPECT_THAT(signatures(vit, "embedding.patches", Rules::Published),
              ElementsAre("gather0 full full -> gather0", "full gather0 gather0 -> gather1", "full full full -> full"));
  EXPECT_THAT(signatures(vit, "embedding.flatten", Rules::Published),
              ElementsAre("gather0 -> gather0", "gather1 -> gather1", "full -> full"));
  EXPECT_THAT(signatures(vit, "embedding.prepend_class", Rules::Published),
              ElementsAre("gather0 full -> gather0", "gather2 gather2 -> gather2", "full full -> full"));
  EXPECT_THAT(signatures(vit, "head.take_class", Rules::Published),
              ElementsAre("gather0 -> gather0", "gather2 -> gather1", "full -> full"));
}

}  // namespace
}  // namespace isobar::spmd::signature_test

#include "exec/spmd/operators.hpp"

#include "core/errors.hpp"
#include "core/spmd/signature.hpp"
#include "exec/data/mixing.hpp"
#include "exec/spmd/dropout.hpp"
#include "exec/spmd/gating.hpp"
#include "tests/core/spmd/plain_operators.hpp"
#include "tests/exec/spmd/parts.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace isobar::exec::operators_test {
namespace {

using parts::Sizes;
using spmd::Form;
using spmd::Operator;
using spmd::OperatorGraph;
using spmd::OperatorKind;
using spmd::Rules;
using spmd::Signature;
using spmd::Trunk;
using testing::StrEq;
using testing::ThrowsMessage;

constexpr double near = 1e-12;
const OperatorSettings settings = {.top_k = 2, .dropout = 0.4, .seed = 5, .step = 3, .first_sample = 10};

/// Heads of width 2, as plain::compute has them, and sides that two to four devices cannot all divide.
spmd::MoeSizes sizes_of(Trunk trunk)
{
  spmd::MoeSizes sizes;
  sizes.trunk = trunk;
  sizes.layers = 2;
  sizes.hidden = 10;
  sizes.heads = 5;
  sizes.intermediate = 7;
  sizes.sequence = 6;
  sizes.experts = 3;
  sizes.top_k = 2;
  sizes.vocabulary = 11;
  sizes.image = 8;
  sizes.patch = 4;
  sizes.classes = 6;
  if (trunk == Trunk::Vit) sizes.sequence = patches_of(sizes) + 1;
  return sizes;
}

OperatorGraph graph_of(Trunk trunk)
{
  return make_operator_graph(sizes_of(trunk), 5, 8);
}

const auto all_trunks = {Trunk::Plain, Trunk::Bert, Trunk::Vit};

const Operator& named(const OperatorGraph& graph, const std::string& name)
{
  return *std::find_if(graph.operators.begin(), graph.operators.end(),
                       [&](const Operator& node) { return node.name == name; });
}

bool has_source(const Operator& node)
{
  return node.kind == OperatorKind::Data || node.kind == OperatorKind::Parameter;
}

/// How many tokens or classes an input chooses from; 0 if it has numbers.
std::int64_t choices_of(const OperatorGraph& graph, const Operator& node, std::size_t input)
{
  const bool is_token = node.kind == OperatorKind::Embedding && input == 0;
  const bool is_label = node.kind == OperatorKind::NllSum && input == 1;
  if (is_token) return static_cast<std::int64_t>(graph.tensors[node.inputs[1]].shape[0]);
  if (is_label) return static_cast<std::int64_t>(graph.tensors[node.inputs[0]].shape[1]);
  return 0;
}

Tensors random_inputs(const OperatorGraph& graph, const Operator& node)
{
  Tensors inputs;
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    const auto shape = TensorBlock::whole(graph.tensors[node.inputs[k]]).size;
    const auto choices = choices_of(graph, node, k);
    inputs.push_back(choices > 0 ? at::randint(choices, shape, at::kLong) : at::rand(shape, at::kDouble) * 2 - 1);
  }
  return inputs;
}

/// The outputs of an operator, and the gradients of its inputs from those of its outputs; undefined of tokens.
struct Computed {
  Tensors outputs;
  Tensors gradients;
};

Computed computed(const OperatorGraph& graph, const Operator& node, const Tensors& inputs, const TensorBlock& output,
                  const Tensors& output_gradients)
{
  Tensors leaves;
  for (const auto& input : inputs) {
    leaves.push_back(input.detach().clone());
    if (leaves.back().is_floating_point()) leaves.back().requires_grad_();
  }
  Computed result;
  result.outputs = compute(graph, node, leaves, output, settings);
  Tensors roots, seeds;
  for (std::size_t k = 0; k < result.outputs.size(); ++k) {
    if (result.outputs[k].requires_grad()) {
      roots.push_back(result.outputs[k]);
      seeds.push_back(output_gradients.at(k));
    }
    result.outputs[k] = result.outputs[k].detach();
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
  for (const auto& leaf : leaves) {
    const bool has_none = leaf.requires_grad() && !leaf.grad().defined();
    result.gradients.push_back(has_none ? at::zeros_like(leaf).detach() : leaf.grad());
  }
  return result;
}

Tensors random_like(const OperatorGraph& graph, const std::vector<std::size_t>& tensors)
{
  Tensors made;
  for (const auto tensor : tensors) {
    made.push_back(at::rand(TensorBlock::whole(graph.tensors[tensor]).size, at::kDouble) * 2 - 1);
  }
  return made;
}

Computed computed_whole(const OperatorGraph& graph, const Operator& node, const Tensors& inputs,
                        const Tensors& output_gradients)
{
  const TensorBlock output = node.outputs.empty() ? TensorBlock() : TensorBlock::whole(graph.tensors[node.outputs[0]]);
  return computed(graph, node, inputs, output, output_gradients);
}

// ---- Against operators that are computed number by number.

/// Tokens become numbers that plain::choice_of reads as these tokens.
spmd::plain::Array array_of(const at::Tensor& tensor)
{
  spmd::plain::Array array(std::vector<std::size_t>(tensor.sizes().begin(), tensor.sizes().end()));
  const at::Tensor numbers = tensor.is_floating_point() ? tensor : (tensor.to(at::kDouble) + 0.5) * 1e-6;
  const at::Tensor flat = numbers.contiguous().view(-1);
  for (std::size_t i = 0; i < array.numbers.size(); ++i) {
    array.numbers[i] = flat[static_cast<std::int64_t>(i)].item<double>();
  }
  return array;
}

at::Tensor tensor_of(const spmd::plain::Array& array)
{
  const std::vector<std::int64_t> shape(array.shape.begin(), array.shape.end());
  return at::tensor(array.numbers, at::kDouble).view(shape);
}

/// What an operator of ours has as a factor more than the plain one.
double factor_of(const OperatorGraph& graph, const Operator& node)
{
  if (node.kind == OperatorKind::Scores) {
    return 1 / std::sqrt(static_cast<double>(graph.tensors[node.inputs[0]].shape.back()));
  }
  if (node.kind == OperatorKind::Scale) {
    return std::sqrt(static_cast<double>(graph.tensors[node.outputs[0]].shape.back())) / 3;
  }
  return 1;
}

/// The gradient of the sum of the plain operator's outputs times `seeds`, by differences.
at::Tensor gradient_by_differences(const Operator& node, const Tensors& inputs, const Tensors& seeds, std::size_t k)
{
  constexpr double step = 1e-6;
  std::vector<spmd::plain::Array> arrays;
  for (const auto& input : inputs) arrays.push_back(array_of(input));
  const auto value = [&] {
    double sum = 0;
    const auto outputs = spmd::plain::compute(node, arrays);
    for (std::size_t i = 0; i < outputs.size(); ++i) sum += (tensor_of(outputs[i]) * seeds[i]).sum().item<double>();
    return sum;
  };
  spmd::plain::Array gradient = arrays[k];
  for (std::size_t i = 0; i < gradient.numbers.size(); ++i) {
    const double number = arrays[k].numbers[i];
    arrays[k].numbers[i] = number + step;
    const double above = value();
    arrays[k].numbers[i] = number - step;
    gradient.numbers[i] = (above - value()) / (2 * step);
    arrays[k].numbers[i] = number;
  }
  return tensor_of(gradient);
}

void expect_plain_results(const OperatorGraph& graph, const Operator& node)
{
  constexpr double near_differences = 1e-7;
  const Tensors inputs = random_inputs(graph, node);
  const Tensors seeds = random_like(graph, node.outputs);
  const Computed found = computed_whole(graph, node, inputs, seeds);
  const double factor = factor_of(graph, node);
  std::vector<spmd::plain::Array> arrays;
  for (const auto& input : inputs) arrays.push_back(array_of(input));
  const auto expected = spmd::plain::compute(node, arrays);
  ASSERT_EQ(found.outputs.size(), expected.size());
  for (std::size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(found.outputs[k].sizes(), at::IntArrayRef(TensorBlock::whole(graph.tensors[node.outputs[k]]).size));
    EXPECT_TRUE(at::allclose(found.outputs[k], tensor_of(expected[k]) * factor, near, near));
  }
  std::vector<spmd::plain::Array> gradients;
  if (node.outputs.size() == 1) gradients = spmd::plain::gradients(node, arrays, array_of(seeds[0]));
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].is_floating_point()) continue;
    const bool is_exact = k < gradients.size();
    const at::Tensor gradient = is_exact ? tensor_of(gradients[k]) : gradient_by_differences(node, inputs, seeds, k);
    const double tolerance = is_exact ? near : near_differences;
    EXPECT_TRUE(at::allclose(found.gradients[k], gradient * factor, tolerance, tolerance)) << "of input " << k;
  }
}

TEST(Operators, ComputeWhatThePlainOperatorsOfAllTrunksDo)
{
  at::manual_seed(1);
  // Those of this test's file judge the others.
  const std::set<OperatorKind> others = {OperatorKind::Dropout, OperatorKind::Mask, OperatorKind::Gating,
                                         OperatorKind::Positions, OperatorKind::Output};
  std::set<OperatorKind> judged;
  for (const Trunk trunk : all_trunks) {
    const OperatorGraph graph = graph_of(trunk);
    for (const auto& node : graph.operators) {
      if (has_source(node) || others.count(node.kind) > 0) continue;
      // Layers repeat, and differences take a while.
      if (node.layer == 1 && node.kind != OperatorKind::Linear && judged.count(node.kind) > 0) continue;
      judged.insert(node.kind);
      SCOPED_TRACE(node.name);
      expect_plain_results(graph, node);
    }
  }
  EXPECT_EQ(judged.size(), 23U);
}

TEST(Mask, HidesLaterTokensAlsoFromSlices)
{
  const OperatorGraph graph = graph_of(Trunk::Bert);
  const Operator& mask = named(graph, "layer0.mask");
  const at::Tensor scores = at::rand({2, 3, 4, 5}, at::kDouble);
  const at::Tensor found = compute(graph, mask, {scores}, {{0, 0, 2, 1}, {2, 3, 4, 5}}, settings)[0];
  for (std::int64_t query = 0; query < 4; ++query) {
    for (std::int64_t key = 0; key < 5; ++key) {
      const at::Tensor at_place = found.select(2, query).select(2, key);
      const bool is_later = key + 1 > query + 2;
      EXPECT_TRUE(is_later ? at_place.isneginf().all().item<bool>()
                           : at::equal(at_place, scores.select(2, query).select(2, key)));
    }
  }
}

TEST(Positions, AreTheSinesAndCosinesOfAttentionIsAllYouNeed)
{
  const OperatorGraph graph = graph_of(Trunk::Bert);
  const Operator& positions = named(graph, "embedding.positions");
  const at::Tensor found = compute(graph, positions, {}, {{0, 2, 3}, {1, 4, 5}}, settings)[0];
  ASSERT_EQ(found.sizes(), at::IntArrayRef({1, 4, 5}));
  for (std::int64_t token = 2; token < 6; ++token) {
    for (std::int64_t column = 3; column < 8; ++column) {
      const double even = static_cast<double>(column / 2 * 2);
      const double angle = static_cast<double>(token) / std::pow(10'000, even / 10);
      EXPECT_NEAR(found[0][token - 2][column - 3].item<double>(), column % 2 == 0 ? std::sin(angle) : std::cos(angle),
                  near);
    }
  }
}

// ---- Dropout

TEST(Dropout, KeepsTheElementsWhoseMixedIndexIsLarge)
{
  const std::uint64_t key = dropout_key(5, 3, "layer0.dropout");
  const at::Tensor input = at::rand({3, 4, 5}, at::kDouble) + 1;
  const at::Tensor found = dropped_out(input, {7, 0, 2}, key, 0.4);
  for (std::uint64_t i = 0; i < 3; ++i) {
    for (std::uint64_t j = 0; j < 4; ++j) {
      for (std::uint64_t k = 0; k < 5; ++k) {
        const bool stays = std::ldexp(static_cast<double>(mixed({key, 7 + i, j, 2 + k}) >> 11U), -53) >= 0.4;
        const auto at_index = [&](const at::Tensor& tensor) {
          return tensor[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(j)][static_cast<std::int64_t>(k)]
              .item<double>();
        };
        EXPECT_NEAR(at_index(found), stays ? at_index(input) / 0.6 : 0, near);
      }
    }
  }
}

TEST(Dropout, DropsItsShareAndDrawsOthersInEachStepOperatorAndSample)
{
  const at::Tensor ones = at::ones({64, 100, 100});
  const auto drawn = [&](std::uint64_t seed, std::uint64_t step, const char* name, std::int64_t sample) {
    return dropped_out(ones, {sample, 0, 0}, dropout_key(seed, step, name), 0.1) > 0;
  };
  const at::Tensor first = drawn(1, 0, "a", 0);
  EXPECT_NEAR(first.to(at::kFloat).mean().item<double>(), 0.9, 0.002);
  const double both = 0.9 * 0.9 + 0.1 * 0.1;
  for (const auto& other : {drawn(2, 0, "a", 0), drawn(1, 1, "a", 0), drawn(1, 0, "b", 0), drawn(1, 0, "a", 64)}) {
    EXPECT_NEAR((first == other).to(at::kFloat).mean().item<double>(), both, 0.002);
  }
  for (const std::int64_t dimension : {0, 1, 2}) {
    const at::Tensor next = first.roll(1, dimension);
    EXPECT_NEAR((first == next).to(at::kFloat).mean().item<double>(), both, 0.002) << "neighbours are independent";
  }
}

TEST(Dropout, DrawsTheSameForAMicroBatchAndForItsHalves)
{
  const OperatorGraph graph = graph_of(Trunk::Plain);
  const Operator& dropout = named(graph, "layer0.dropout1");
  const at::Tensor input = at::ones({4, 6, 10}, at::kDouble);
  const auto compute_from = [&](std::uint64_t first_sample, const at::Tensor& samples) {
    OperatorSettings of_half = settings;
    of_half.first_sample = first_sample;
    return compute(graph, dropout, {samples}, {{0, 0, 0}, samples.sizes().vec()}, of_half)[0];
  };
  const at::Tensor halves = at::cat({compute_from(8, input.slice(0, 0, 2)), compute_from(10, input.slice(0, 2))});
  EXPECT_TRUE(at::equal(compute_from(8, input), halves));
}

TEST(Dropout, OfAnEvaluationChangesNothing)
{
  const OperatorGraph graph = graph_of(Trunk::Plain);
  const at::Tensor input = at::rand({4, 6, 10});
  OperatorSettings of_evaluation = settings;
  of_evaluation.dropout = 0;
  EXPECT_TRUE(at::equal(compute(graph, named(graph, "layer0.dropout1"), {input}, {}, of_evaluation)[0], input));
}

// ---- Gating

/// GShard's algorithm 1, token by token, and Switch's with one choice.
struct PlainGating {
  PlainGating(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t capacity, std::uint64_t top_k)
      : mask(at::zeros({tokens.size(0), tokens.size(1), weight.size(1), capacity}, at::kDouble)),
        weights(at::zeros_like(mask))
  {
    for (std::int64_t sample = 0; sample < tokens.size(0); ++sample) {
      std::vector<std::int64_t> filled(static_cast<std::size_t>(weight.size(1)), 0);
      for (std::uint64_t choice = 0; choice < top_k; ++choice) {
        for (std::int64_t token = 0; token < tokens.size(1); ++token) {
          const at::Tensor gates = at::softmax(weight.t().mv(tokens[sample][token]), 0);
          const auto [values, order] = gates.topk(std::min<std::int64_t>(2, gates.size(0)));
          const auto rank = static_cast<std::int64_t>(choice);
          const auto expert = order[rank].item<std::int64_t>();
          const double gate = values[rank].item<double>() / (top_k == 2 ? values.sum().item<double>() : 1);
          const std::int64_t slot = filled[static_cast<std::size_t>(expert)]++;
          if (slot >= capacity) continue;
          mask[sample][token][expert][slot] = 1;
          weights[sample][token][expert][slot] = gate;
        }
      }
    }
  }

  at::Tensor mask, weights;
};

TEST(Gating, FillsSlotsInTheOrderOfChoicesAndTokens)
{
  at::manual_seed(2);
  for (const std::uint64_t top_k : {1U, 2U}) {
    for (const std::int64_t capacity : {1, 2, 4, 7}) {
      const at::Tensor tokens = at::randn({3, 7, 4}, at::kDouble);
      const at::Tensor weight = at::randn({4, 3}, at::kDouble);
      const Tensors found = gating(tokens, weight, capacity, top_k);
      const PlainGating expected(tokens, weight, capacity, top_k);
      EXPECT_TRUE(at::equal(found[0], expected.mask)) << top_k << " of " << capacity;
      EXPECT_TRUE(at::allclose(found[1], expected.weights, near, near)) << top_k << " of " << capacity;
    }
  }
}

TEST(Gating, PutsSecondChoicesAfterAllFirstOnes)
{
  // All tokens choose expert 0 first and expert 1 second, but the last: it chooses them in the other order.
  const at::Tensor tokens = at::tensor({2.0, 1.0, 2.0, 1.0, 1.0, 2.0}, at::kDouble).view({1, 3, 2});
  const at::Tensor mask = gating(tokens, at::eye(2, at::kDouble), 3, 2)[0][0];
  const auto slot = [&](std::int64_t token, std::int64_t expert) { return mask[token][expert].argmax().item<int>(); };
  EXPECT_EQ(slot(0, 0), 0);
  EXPECT_EQ(slot(1, 0), 1);
  EXPECT_EQ(slot(2, 0), 2) << "after two first choices";
  EXPECT_EQ(slot(2, 1), 0);
  EXPECT_EQ(slot(0, 1), 1) << "after one first choice";
  EXPECT_EQ(slot(1, 1), 2);
}

TEST(Gating, GivesTheGatesAGradientAndTheMaskNone)
{
  at::manual_seed(3);
  for (const std::uint64_t top_k : {1U, 2U}) {
    const at::Tensor tokens = at::randn({2, 5, 4}, at::kDouble).requires_grad_();
    const at::Tensor weight = at::randn({4, 3}, at::kDouble).requires_grad_();
    const Tensors found = gating(tokens, weight, 2, top_k);
    EXPECT_FALSE(found[0].requires_grad());
    const at::Tensor seeds = at::randn_like(found[1]);
    found[1].backward(seeds);
    const at::NoGradGuard no_graph;
    for (const at::Tensor& input : {tokens, weight}) {
      const at::Tensor flat = input.view(-1);
      for (std::int64_t i = 0; i < flat.size(0); ++i) {
        const auto value = [&] { return (gating(tokens, weight, 2, top_k)[1] * seeds).sum().item<double>(); };
        constexpr double step = 1e-6;
        flat[i].add_(step);
        const double above = value();
        flat[i].sub_(2 * step);
        const double below = value();
        flat[i].add_(step);
        EXPECT_NEAR(input.grad().view(-1)[i].item<double>(), (above - below) / (2 * step), 1e-7);
      }
    }
  }
}

TEST(Gating, ComputesGatesOfSixteenBitsInFloat32)
{
  at::manual_seed(4);
  const at::Tensor tokens = at::randn({2, 6, 16}).to(at::kBFloat16);
  const at::Tensor weight = at::randn({16, 4});
  const Tensors found = gating(tokens, weight, 3, 1);
  const Tensors expected = gating(tokens.to(at::kFloat), weight, 3, 1);
  EXPECT_EQ(found[0].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(found[0].to(at::kFloat), expected[0]));
  EXPECT_TRUE(at::equal(found[1], expected[1].to(at::kBFloat16)));
}

// ---- Signatures

/// The letters of an operator's inputs and outputs that a signature divides, and the sizes of the devices' slices in
/// units that all tensors with the letter have.
struct Division {
  Division(const OperatorGraph& graph, const Operator& node, const Signature& signature, std::size_t devices,
           std::mt19937& random)
  {
    const auto count = [&](const std::vector<std::size_t>& tensors, const std::vector<Form>& forms) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (forms[i].kind != Form::Kind::Gather) continue;
        const auto side = static_cast<std::int64_t>(graph.tensors[tensors[i]].shape[forms[i].dimension]);
        units = units == 0 ? side : std::min(units, side);
      }
    };
    count(node.inputs, signature.inputs);
    count(node.outputs, signature.outputs);
    sizes = parts::random_sizes(units, devices, random);
  }

  /// Sizes of the slices of a tensor.
  Sizes of(const spmd::Tensor& tensor, Form form) const
  {
    Sizes scaled = sizes;
    if (form.kind != Form::Kind::Gather) return scaled;
    for (auto& size : scaled) size *= static_cast<std::int64_t>(tensor.shape[form.dimension]) / units;
    return scaled;
  }

  TensorBlock slice_of(const spmd::Tensor& tensor, Form form, std::size_t device) const
  {
    TensorBlock slice = TensorBlock::whole(tensor);
    if (form.kind != Form::Kind::Gather) return slice;
    const Sizes scaled = of(tensor, form);
    slice.begin[form.dimension] = parts::begin_of(scaled, device);
    slice.size[form.dimension] = scaled[device];
    return slice;
  }

  std::int64_t units = 0;
  Sizes sizes;
};

std::string text_of(const Signature& signature)
{
  std::string text;
  for (const Form form : signature.inputs) text += name_of(form) + " ";
  text += "->";
  for (const Form form : signature.outputs) text += " " + name_of(form);
  return text;
}

/// Computes an operator on the devices' parts of its inputs; names the first tensor of which they do not have what one
/// device has, or "".
std::string difference(const OperatorGraph& graph, const Operator& node, const Signature& signature,
                       std::size_t devices, std::mt19937& random)
{
  const Division division(graph, node, signature, devices, random);
  const Tensors inputs = random_inputs(graph, node);
  const Tensors seeds = random_like(graph, node.outputs);
  const Computed whole = computed_whole(graph, node, inputs, seeds);

  std::vector<Tensors> inputs_of(devices), seeds_of(devices);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Form form = signature.inputs[k];
    const Tensors held = parts::divided(inputs[k], form, division.of(graph.tensors[node.inputs[k]], form));
    for (std::size_t device = 0; device < devices; ++device) inputs_of[device].push_back(held[device]);
  }
  for (std::size_t k = 0; k < seeds.size(); ++k) {
    const Form form = spmd::gradient_form(signature.outputs[k]);
    const Tensors held = parts::divided(seeds[k], form, division.of(graph.tensors[node.outputs[k]], form));
    for (std::size_t device = 0; device < devices; ++device) seeds_of[device].push_back(held[device]);
  }
  std::vector<Computed> found;
  for (std::size_t device = 0; device < devices; ++device) {
    TensorBlock output;
    if (!node.outputs.empty()) {
      output = division.slice_of(graph.tensors[node.outputs[0]], signature.outputs[0], device);
    }
    found.push_back(computed(graph, node, inputs_of[device], output, seeds_of[device]));
  }
  const auto is_whole = [](const Tensors& held, Form form, const at::Tensor& wanted) {
    const at::Tensor tensor = parts::joined(held, form);
    return tensor.defined() && tensor.sizes() == wanted.sizes() && at::allclose(tensor, wanted, near, near);
  };
  for (std::size_t k = 0; k < whole.outputs.size(); ++k) {
    Tensors held;
    for (const auto& of_device : found) held.push_back(of_device.outputs[k]);
    if (!is_whole(held, signature.outputs[k], whole.outputs[k])) return fmt::format("output {}", k);
  }
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].is_floating_point()) continue;
    Tensors held;
    for (const auto& of_device : found) held.push_back(of_device.gradients[k]);
    if (!is_whole(held, spmd::gradient_form(signature.inputs[k]), whole.gradients[k])) {
      return fmt::format("gradient of input {}", k);
    }
  }
  return "";
}

TEST(Operators, ComputeByEverySignatureWhatOneDeviceDoes)
{
  at::manual_seed(1);
  std::mt19937 random(1);
  std::set<OperatorKind> judged;
  for (const Trunk trunk : all_trunks) {
    const OperatorGraph graph = graph_of(trunk);
    for (const auto& node : graph.operators) {
      if (has_source(node)) continue;
      judged.insert(node.kind);
      for (const auto& signature : signatures_of(graph, node, Rules::Corrected)) {
        for (const std::size_t devices : {2U, 3U, 4U}) {
          EXPECT_EQ(difference(graph, node, signature, devices, random), "")
              << node.name << ": " << text_of(signature) << " on " << devices;
        }
      }
    }
  }
  EXPECT_EQ(judged.size(), 28U) << "all but data, parameters and those of the published graph";
}

TEST(Operators, ComputeOtherwiseByWrongSignatures)
{
  at::manual_seed(1);
  std::mt19937 random(1);
  const OperatorGraph graph = graph_of(Trunk::Bert);
  const auto found = [&](const char* name, const Signature& signature) {
    return difference(graph, named(graph, name), signature, 2, random);
  };
  using spmd::full, spmd::reduce, spmd::gather;
  EXPECT_EQ(found("layer0.out", {{gather(2), gather(1), full}, {reduce}}), "output 0") << "the bias counts twice";
  EXPECT_EQ(found("layer0.relu", {{reduce}, {reduce}}), "output 0") << "is not linear";
  EXPECT_EQ(found("layer0.add1", {{full, reduce}, {reduce}}), "output 0") << "the residual counts twice";
  EXPECT_EQ(found("layer0.out", {{reduce, full, reduce}, {full}}), "output 0") << "has addends";
  EXPECT_THROW(found("layer1.combine", {{full, gather(2)}, {gather(1)}}), c10::Error)
      << "published: weights divided by experts do not fit slots of all experts";
}

// ---- The published attention

/// Multi-head attention of x [tokens, hidden] by stacked weights, as one node of the published graph; in float64.
at::Tensor attention(const at::Tensor& x, const at::Tensor& in_weight, const at::Tensor& in_bias,
                     const at::Tensor& out_weight, const at::Tensor& out_bias, std::int64_t width)
{
  const auto heads_of = [&](const at::Tensor& tokens) {
    return tokens.unflatten(-1, {tokens.size(-1) / width, width}).transpose(0, 1);
  };
  const auto projected = at::linear(x, in_weight, in_bias).chunk(3, -1);
  const auto scores = at::matmul(heads_of(projected[0]), heads_of(projected[1]).transpose(-2, -1));
  const auto probabilities = at::softmax(scores / std::sqrt(static_cast<double>(width)), -1);
  const auto context = at::matmul(probabilities, heads_of(projected[2])).transpose(0, 1).flatten(1);
  return at::linear(context, out_weight, out_bias);
}

TEST(PublishedAttention, IsDividedByHeadsWrongly)
{
  at::manual_seed(1);
  constexpr std::int64_t hidden = 8;
  constexpr std::int64_t width = 2;
  constexpr std::int64_t devices = 2;
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  const at::Tensor x = random({5, hidden});
  const at::Tensor in_weight = random({3 * hidden, hidden});
  const at::Tensor in_bias = random({3 * hidden});
  const at::Tensor out_weight = random({hidden, hidden});
  const at::Tensor out_bias = random({hidden});
  const at::Tensor expected = attention(x, in_weight, in_bias, out_weight, out_bias, width);
  const auto part = [](const at::Tensor& whole, std::int64_t dimension, std::int64_t device) {
    return whole.chunk(devices, dimension)[static_cast<std::size_t>(device)];
  };
  const auto by_heads = [&](const at::Tensor& stacked, std::int64_t device) {
    return part(stacked.unflatten(0, {3, hidden}), 1, device).flatten(0, 1);
  };
  const auto sum_over_devices = [&](bool divides_each_of_three, bool has_one_bias) {
    at::Tensor sum = at::zeros_like(expected);
    for (std::int64_t device = 0; device < devices; ++device) {
      const auto divided = [&](const at::Tensor& stacked) {
        return divides_each_of_three ? by_heads(stacked, device) : part(stacked, 0, device);
      };
      const at::Tensor bias = has_one_bias && device > 0 ? at::zeros_like(out_bias) : out_bias;
      sum += attention(x, divided(in_weight), divided(in_bias), part(out_weight, 1, device), bias, width);
    }
    return sum;
  };
  EXPECT_THROW(
      attention(part(x, 1, 0), part(in_weight, 0, 0), part(in_bias, 0, 0), part(out_weight, 1, 0), out_bias, width),
      c10::Error)
      << "published: each device has a slice of the hidden state, which all columns of its weights need";
  EXPECT_FALSE(at::allclose(sum_over_devices(false, true), expected)) << "slices of the stacked weights";
  EXPECT_FALSE(at::allclose(sum_over_devices(true, false), expected)) << "the bias counts once for each device";
  EXPECT_TRUE(at::allclose(sum_over_devices(true, false), expected + out_bias, near, near));
  EXPECT_TRUE(at::allclose(sum_over_devices(true, true), expected, near, near)) << "with all three corrections";
}

TEST(PublishedAttention, IsNotComputed)
{
  spmd::MoeSizes sizes = sizes_of(Trunk::Bert);
  sizes.parity = true;
  const OperatorGraph graph = make_operator_graph(sizes, 2, 4);
  for (const char* name : {"layer0.attention", "embedding.mask"}) {
    EXPECT_THAT([&] { compute(graph, named(graph, name), {}, {}, settings); },
                ThrowsMessage<InputError>(StrEq(fmt::format(
                    "operator {}: belongs to the published graph, which is only searched; leave parity: true out to "
                    "compute it",
                    name))));
  }
}

}  // namespace
}  // namespace isobar::exec::operators_test

#include "exec/model/layer_module.hpp"

#include "core/errors.hpp"
#include "exec/model/loss.hpp"
#include "tests/exec/model/forward_passes.hpp"
#include "tests/support/small_models.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace isobar::exec::layer_module_test {
namespace {

using testing::StrEq;
using testing::ThrowsMessage;
using testing_support::by_operators;
using testing_support::one_of_each_model;
using testing_support::shipped_workload;
using testing_support::shipped_workloads;
using testing_support::small_model;
using testing_support::small_moe;
using testing_support::small_moes;

std::size_t index_of(const Workload& workload, const std::string& layer)
{
  const auto found = std::ranges::find(workload.layers, layer, &Layer::name);
  return static_cast<std::size_t>(found - workload.layers.begin());
}

TEST(LayerModules, HaveTheParametersAndOutputsThatTheWorkloadCounts)
{
  for (const auto dtype : {DType::Float32, DType::BFloat16}) {
    auto workloads = small_moes(dtype);
    for (const auto& file : shipped_workloads()) workloads.push_back(small_model(file, dtype));
    for (const auto& workload : workloads) {
      const bool is_moe = std::holds_alternative<spmd::MoeSizes>(workload.model);
      const auto modules = all_layers(workload);
      const auto outputs = forward_all(workload, modules, synthetic_inputs(workload, {}, "cpu"), {});
      for (std::size_t i = 0; i < modules.size(); ++i) {
        SCOPED_TRACE(workload.name + " " + workload.layers[i].name);
        Tensors with_gradient;
        for (const auto& output : outputs[i]) {
          EXPECT_EQ(output.scalar_type(), dtype == DType::Float32 ? at::kFloat : at::kBFloat16);
          if (output.requires_grad()) with_gradient.push_back(output);
        }
        std::int64_t parameters = 0;
        for (const auto& parameter : modules[i]->parameters()) {
          EXPECT_EQ(parameter.scalar_type(), at::kFloat);
          parameters += parameter.numel();
        }
        EXPECT_EQ(parameters, static_cast<std::int64_t>(workload.layers[i].parameters));
        EXPECT_EQ(modules[i]->parameter_names().size(), modules[i]->parameters().size());
        if (is_moe && i + 1 == modules.size()) continue;  // its output is the loss, which loss_of computes
        EXPECT_EQ(bytes_of(outputs[i]), workload.layers[i].output.value);
        EXPECT_EQ(bytes_of(with_gradient), workload.layers[i].gradient.value);
      }
    }
  }
}

TEST(LayerModules, GiveEveryParameterAFiniteGradient)
{
  for (const auto dtype : {DType::Float32, DType::BFloat16}) {
    for (const double dropout : {0.0, 0.1}) {
      for (const auto& workload : one_of_each_model(dtype, dropout)) {
        const auto modules = all_layers(workload);
        const auto outputs = forward_all(workload, modules, synthetic_inputs(workload, {}, "cpu"), {});
        const auto* const moe = std::get_if<spmd::MoeSizes>(&workload.model);
        const bool is_plain_moe = moe != nullptr && moe->trunk == spmd::Trunk::Plain;
        loss_of(workload, outputs.back(), synthetic_labels(workload, {}, "cpu")).backward();
        for (std::size_t i = 0; i < modules.size(); ++i) {
          for (std::size_t j = 0; j < modules[i]->parameters().size(); ++j) {
            SCOPED_TRACE(workload.layers[i].name + " " + modules[i]->parameter_names()[j] + " of " + workload.name);
            const auto& gradient = modules[i]->parameters()[j].grad();
            ASSERT_TRUE(gradient.defined());
            EXPECT_EQ(gradient.scalar_type(), at::kFloat);
            EXPECT_TRUE(gradient.isfinite().all().item<bool>());
            // What a softmax adds to all scores of a token alike has no effect: BERT's key.bias.
            if (modules[i]->parameter_names()[j] == "key.bias") continue;
            if (is_plain_moe) continue;  // the sum of what a norm with weights of 1 gives is constant
            EXPECT_TRUE((gradient != 0).any().item<bool>());
          }
        }
      }
    }
  }
}

TEST(LayerModules, StartEqualOnlyFromTheSameSeedAndLayer)
{
  for (const auto& workload : one_of_each_model()) {
    for (std::size_t i = 0; i < workload.layers.size(); ++i) {
      SCOPED_TRACE(workload.layers[i].name + " of " + workload.name);
      const auto parameters = make_layer_module(workload, i, 1, "cpu")->parameters();
      EXPECT_TRUE(same_bits(make_layer_module(workload, i, 1, "cpu")->parameters(), parameters));
      EXPECT_EQ(same_bits(make_layer_module(workload, i, 2, "cpu")->parameters(), parameters), parameters.empty());
    }
  }
  const auto workload = small_model(shipped_workload("gpt2_124m"));
  EXPECT_FALSE(at::equal(parameter(*make_layer_module(workload, 1, 1, "cpu"), "up.weight"),
                         parameter(*make_layer_module(workload, 2, 1, "cpu"), "up.weight")));
}

TEST(LayerModules, StartWithNormalWeightsZeroBiasesAndNormsOfOne)
{
  auto workload = small_model(shipped_workload("bert10"));
  auto& sizes = std::get<BertSizes>(workload.model);
  sizes.hidden = 120;
  workload.layers.clear();
  build_bert(sizes, workload);
  const auto attention = make_layer_module(workload, 1, 1, "cpu");
  const auto& weight = parameter(*attention, "query.weight");
  EXPECT_NEAR(weight.mean().item<double>(), 0, 5 * 0.02 / 120);
  EXPECT_NEAR(weight.std().item<double>(), 0.02, 0.001);
  EXPECT_FALSE(at::equal(weight, parameter(*attention, "key.weight")));
  EXPECT_TRUE((parameter(*attention, "query.bias") == 0).all().item<bool>());
  EXPECT_TRUE((parameter(*attention, "norm.weight") == 1).all().item<bool>());
  EXPECT_TRUE((parameter(*attention, "norm.bias") == 0).all().item<bool>());

  const auto images = small_model(shipped_workload("resnet50"));
  const auto block = make_layer_module(images, 1, 1, "cpu");
  EXPECT_NEAR(parameter(*block, "second.weight").std().item<double>(), std::sqrt(2.0 / (9 * 64)), 0.001);
  EXPECT_TRUE((parameter(*block, "second.norm.weight") == 1).all().item<bool>());
}

TEST(LayerModules, LeaveTheGlobalGeneratorAlone)
{
  const auto before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  for (const auto& workload : one_of_each_model(DType::Float32, 0.5)) {
    forward_all(workload, all_layers(workload), synthetic_inputs(workload, {}, "cpu"), {});
    EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), before)) << workload.name;
  }
}

TEST(LayerModules, OutputTheSameBitsInARecomputation)
{
  for (const auto dtype : {DType::Float32, DType::BFloat16}) {
    for (const auto& workload : one_of_each_model(dtype, 0.5)) {
      SCOPED_TRACE(workload.name);
      const auto modules = all_layers(workload);
      const auto inputs = synthetic_inputs(workload, {}, "cpu");
      std::vector<Tensors> without_gradients;
      {
        const at::NoGradGuard guard;
        without_gradients = forward_all(workload, modules, inputs, {1, 2, 3});
      }
      const auto outputs = forward_all(workload, modules, inputs, {1, 2, 3});
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_TRUE(same_bits(outputs[i], without_gradients[i])) << workload.layers[i].name;
      }
    }
  }
}

TEST(LayerModules, ComputeNearlyTheSameInSixteenBits)
{
  for (const auto* name : {"bert10", "gpt2_124m", "llama_8b"}) {
    const auto exact = small_model(shipped_workload(name));
    const auto inputs = synthetic_inputs(exact, {}, "cpu");
    const auto expected = forward_all(exact, all_layers(exact), inputs, {});
    for (const auto dtype : {DType::BFloat16, DType::Float16}) {
      const auto rounded = small_model(shipped_workload(name), dtype);
      const auto outputs = forward_all(rounded, all_layers(rounded), inputs, {});
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto error = (outputs[i][0].to(at::kFloat) - expected[i][0]).norm() / expected[i][0].norm();
        EXPECT_LT(error.item<double>(), 0.02) << exact.layers[i].name << " of " << name;
      }
    }
  }
}

TEST(Dropout, FollowsFromEveryPartOfTheKey)
{
  for (const auto& workload : one_of_each_model(DType::Float32, 0.5)) {
    const bool has_dropout =
        !std::holds_alternative<LlamaSizes>(workload.model) && !std::holds_alternative<ResnetSizes>(workload.model);
    if (!has_dropout) continue;
    SCOPED_TRACE(workload.name);
    const auto modules = all_layers(workload);
    const auto inputs = synthetic_inputs(workload, {}, "cpu");
    const auto outputs = forward_all(workload, modules, inputs, {1, 2, 3});
    EXPECT_TRUE(same_bits(forward_all(workload, modules, inputs, {1, 2, 3}).back(), outputs.back()));
    for (const auto& key : {RandomKey{9, 2, 3}, RandomKey{1, 9, 3}, RandomKey{1, 2, 9}}) {
      EXPECT_FALSE(same_bits(forward_all(workload, modules, inputs, key).back(), outputs.back()));
    }
  }
}

TEST(Dropout, SetsItsShareToZeroAndScalesTheRest)
{
  auto workload = small_model(shipped_workload("gpt2_124m"));
  workload.micro_batch = 500;
  const auto inputs = synthetic_inputs(workload, {}, "cpu");
  const auto whole = make_layer_module(workload, 0, 1, "cpu")->forward(inputs, {}).at(0);
  workload.training.dropout = 0.2;
  const auto dropped = make_layer_module(workload, 0, 1, "cpu")->forward(inputs, {}).at(0);
  const auto zero = dropped == 0;
  EXPECT_NEAR(zero.to(at::kFloat).mean().item<double>(), 0.2, 0.01);
  EXPECT_TRUE(at::allclose(dropped, at::where(zero, at::zeros_like(whole), whole / 0.8)));
}

TEST(Dropout, DoesNotDependOnTheNumberOfThreads)
{
  auto workload = small_model(shipped_workload("gpt2_124m"), DType::Float32, 0.5);
  workload.micro_batch = 5000;  // enough for torch to divide the elements among threads
  const auto inputs = synthetic_inputs(workload, {}, "cpu");
  const auto embedding = make_layer_module(workload, 0, 1, "cpu");
  const auto threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto by_one = embedding->forward(inputs, {});
  at::set_num_threads(3);
  const auto by_three = embedding->forward(inputs, {});
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(by_one, by_three));
}

TEST(Gpt, ComputesTheSameByItsFormulaAsByTorchsKernel)
{
  const auto exact = small_model(shipped_workload("gpt2_124m"));
  // So small a rate that nothing is dropped: selects the explicit path only.
  const auto by_formula = small_model(shipped_workload("gpt2_124m"), DType::Float32, 1e-12);
  const auto inputs = synthetic_inputs(exact, {}, "cpu");
  const auto one = forward_all(exact, all_layers(exact), inputs, {});
  const auto other = forward_all(by_formula, all_layers(by_formula), inputs, {});
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::allclose(one[i][0], other[i][0], 1e-4, 1e-6));
}

TEST(Decoders, AreTheSameModelByBlocksAndByOperators)
{
  for (const auto* name : {"gpt2_124m", "llama_8b"}) {
    for (const auto dtype : {DType::Float32, DType::BFloat16}) {
      SCOPED_TRACE(name);
      const auto blocks = small_model(shipped_workload(name), dtype, 0.3);
      const auto operators = by_operators(blocks);
      const auto of_blocks = all_layers(blocks);
      const auto of_operators = all_layers(operators);
      ASSERT_EQ(of_operators.size(), 2 * of_blocks.size() - 2);
      Tensors all_of_blocks;
      for (const auto& layer : of_blocks) {
        all_of_blocks.insert(all_of_blocks.end(), layer->parameters().begin(), layer->parameters().end());
      }
      Tensors all_of_operators;
      for (const auto& layer : of_operators) {
        all_of_operators.insert(all_of_operators.end(), layer->parameters().begin(), layer->parameters().end());
      }
      EXPECT_TRUE(same_bits(all_of_operators, all_of_blocks));
      const auto inputs = synthetic_inputs(blocks, {}, "cpu");
      const RandomKey key{.seed = 3, .step = 2, .microbatch = 1};
      EXPECT_TRUE(same_bits(forward_all(operators, of_operators, inputs, key).back(),
                            forward_all(blocks, of_blocks, inputs, key).back()));
    }
  }
}

TEST(LayerModules, OfOperatorsHaveTheParametersAndOutputsThatTheWorkloadCounts)
{
  for (const auto* name : {"gpt2_124m", "llama_8b"}) {
    const auto workload = by_operators(small_model(shipped_workload(name)));
    const auto modules = all_layers(workload);
    const auto outputs = forward_all(workload, modules, synthetic_inputs(workload, {}, "cpu"), {});
    for (std::size_t i = 0; i < modules.size(); ++i) {
      EXPECT_EQ(bytes_of(outputs[i]), workload.layers[i].output.value) << workload.layers[i].name;
      EXPECT_EQ(bytes_of(modules[i]->parameters()), 4.0 * static_cast<double>(workload.layers[i].parameters));
    }
  }
}

TEST(Decoders, DoNotLookAhead)
{
  for (const auto* name : {"gpt2_124m", "llama_8b"}) {
    for (const double dropout : {0.0, 0.3}) {
      SCOPED_TRACE(name);
      const auto workload = small_model(shipped_workload(name), DType::Float32, dropout);
      const auto modules = all_layers(workload);
      auto inputs = synthetic_inputs(workload, {}, "cpu");
      const auto before = forward_all(workload, modules, inputs, {}).back()[0];
      inputs[0].select(1, 4).add_(1).remainder_(29);
      const auto after = forward_all(workload, modules, inputs, {}).back()[0];
      EXPECT_TRUE(at::allclose(before.slice(1, 0, 4), after.slice(1, 0, 4)));
      for (std::int64_t token = 4; token < 7; ++token) {
        EXPECT_FALSE(at::allclose(before.select(1, token), after.select(1, token))) << token;
      }
    }
  }
}

TEST(Bert, DoesNotReadPadding)
{
  const auto workload = small_model(shipped_workload("bert24"));
  const auto modules = all_layers(workload);
  auto inputs = synthetic_inputs(workload, {}, "cpu");
  auto& tokens = inputs[0];
  auto& mask = inputs[1];
  mask.copy_(at::tensor({1, 1, 1, 1, 1, 0, 0}, at::kLong));
  const auto before = forward_all(workload, modules, inputs, {});
  tokens.slice(1, 5).add_(1).remainder_(31);
  const auto after = forward_all(workload, modules, inputs, {});
  for (std::size_t i = 0; i < before.size() - 2; ++i) {
    EXPECT_TRUE(at::allclose(before[i][0].slice(1, 0, 5), after[i][0].slice(1, 0, 5))) << workload.layers[i].name;
  }
  EXPECT_TRUE(at::allclose(before.back()[0], after.back()[0]));
  mask.fill_(1);
  EXPECT_FALSE(at::allclose(forward_all(workload, modules, inputs, {}).back()[0], after.back()[0]));
}

TEST(Bert, PassesMaskAndResidualThroughUnchanged)
{
  const auto workload = small_model(shipped_workload("bert24"));
  const auto outputs = forward_all(workload, all_layers(workload), synthetic_inputs(workload, {}, "cpu"), {});
  const auto up = index_of(workload, "encoder1.up");
  EXPECT_TRUE(outputs[up][1].is_same(outputs[up - 1][0]));
  EXPECT_TRUE(outputs[up][2].is_same(outputs[0][1]));
  EXPECT_FALSE(outputs[up][2].requires_grad());
}

TEST(MakeLayerModule, RefusesListedLayers)
{
  const auto workload = workload_from_text(
      "{model: layers, layers: [{name: a, forward: 1 FLOP, parameters: 1, activations: 1 B, output: 1 B}]}", "x.yaml");
  EXPECT_THAT([&] { make_layer_module(workload, 0, 1, "cpu"); },
              ThrowsMessage<InputError>(StrEq(
                  "workload x: its layers are listed, which gives their cost but not what they compute; name a model: "
                  "bert, gpt, llama, decoder, resnet or moe")));
}

TEST(MakeLayerModule, RefusesThePublishedOperatorsOfMixturesOfExperts)
{
  const auto workload = workload_from_text(
      "{model: moe, trunk: plain, layers: 2, hidden: 8, heads: 2, sequence: 4, parity: true}", "x.yaml");
  EXPECT_THAT([&] { make_layer_module(workload, 1, 1, "cpu"); },
              ThrowsMessage<InputError>(StrEq("workload x: parity: true has the published operators, which are only "
                                              "searched; leave it out to execute")));
}

TEST(MakeLayerModule, RefusesSlotsOfSeveralSamplesAndTokensByIndex)
{
  for (const auto* key : {"capacity_samples: 2", "by_index: true"}) {
    const auto workload = workload_from_text(
        fmt::format("{{model: moe, trunk: plain, layers: 2, hidden: 8, heads: 2, sequence: 4, experts: 2, micro_batch: "
                    "4, {}}}",
                    key),
        "x.yaml");
    EXPECT_THAT(
        [&] { make_layer_module(workload, 1, 1, "cpu"); },
        ThrowsMessage<InputError>(StrEq("workload x: experts of layers that execute have slots for each sample; "
                                        "leave capacity_samples and by_index out")));
  }
}

TEST(MakeLayerModule, RefusesRotaryPositionsOfAnOddWidth)
{
  auto workload = small_model(shipped_workload("llama_8b"));
  std::get<LlamaSizes>(workload.model).hidden = 30;
  EXPECT_THAT([&] { make_layer_module(workload, 0, 1, "cpu"); },
              ThrowsMessage<InputError>(StrEq(
                  "workload llama_8b: hidden 30 over heads 6 makes heads 5 wide; rotary positions rotate pairs, so the "
                  "width of a head must be even")));
}

TEST(MakeLayerModule, RefusesALayerBeyondTheLast)
{
  const auto workload = small_model(shipped_workload("gpt2_124m"));
  EXPECT_THROW(make_layer_module(workload, workload.layers.size(), 1, "cpu"), std::logic_error);
}

}  // namespace
}  // namespace isobar::exec::layer_module_test

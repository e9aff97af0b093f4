#include "core/errors.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/loss.hpp"
#include "tests/exec/model/forward_passes.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/model/small_decoders.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

/// Layers of model decoder: those of all kinds, and each kind against its formula.
namespace isobar::exec::decoder_layers_test {
namespace {

using testing::StrEq;
using testing::ThrowsMessage;

const RandomKey key{.seed = 3, .step = 2, .microbatch = 1};

/// Gives all parameters values that differ from the initial ones, zeros and ones included.
void scatter(const Modules& modules)
{
  const at::NoGradGuard no_graph;
  auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(11);
  for (const auto& module : modules) {
    for (const auto& parameter : module->parameters()) parameter.uniform_(-0.5, 0.5, generator);
  }
}

/// All layers of a model, where a tied head has the embedding's matrix.
Modules layers_of(const Workload& workload)
{
  Modules modules;
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const auto& tied_to = workload.layers[i].tied_to;
    modules.push_back(make_layer_module(workload, i, 1, "cpu", {}, tied_to ? modules[*tied_to].get() : nullptr));
  }
  scatter(modules);
  return modules;
}

at::Tensor logits_of(const Workload& workload, const Modules& modules, const Tensors& inputs)
{
  return forward_all(workload, modules, inputs, key).back().at(0);
}

class DecoderKinds : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  static Workload workload(const std::string& other_keys = "") { return small_decoder(GetParam().second, other_keys); }
};

/// Those whose blocks are attention and feed-forward network one after the other: parallel ones are one layer.
class DecodersInParts : public DecoderKinds {};
/// Those that a fused kernel computes.
class DecodersOfFusedAttention : public DecoderKinds {};

TEST_P(DecoderKinds, HaveTheParametersAndOutputsThatTheWorkloadCounts)
{
  for (const char* dtype : {"dtype: float32", "dtype: bf16"}) {
    const auto model = workload(dtype);
    const auto modules = layers_of(model);
    const auto outputs = forward_all(model, modules, synthetic_inputs(model, key, "cpu"), key);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      SCOPED_TRACE(model.layers[i].name);
      EXPECT_EQ(bytes_of(modules[i]->parameters()), 4.0 * static_cast<double>(model.layers[i].parameters));
      EXPECT_EQ(bytes_of(outputs[i]), model.layers[i].output.value);
    }
  }
}

TEST_P(DecoderKinds, GiveEveryParameterAFiniteGradient)
{
  for (const char* dtype : {"dtype: float32", "dtype: bf16"}) {
    const auto model = workload(dtype);
    const auto modules = layers_of(model);
    const auto outputs = forward_all(model, modules, synthetic_inputs(model, key, "cpu"), key);
    loss_of(model, outputs.back(), synthetic_labels(model, key, "cpu")).backward();
    for (std::size_t i = 0; i < modules.size(); ++i) {
      for (std::size_t j = 0; j < modules[i]->parameters().size(); ++j) {
        SCOPED_TRACE(model.layers[i].name + " " + modules[i]->parameter_names()[j]);
        const auto& gradient = modules[i]->parameters()[j].grad();
        ASSERT_TRUE(gradient.defined());
        EXPECT_TRUE(gradient.isfinite().all().item<bool>());
        if (modules[i]->parameter_names()[j] != "key.bias") {
          EXPECT_TRUE((gradient != 0).any().item<bool>());
        }
      }
    }
  }
}

TEST_P(DecodersInParts, AreTheSameModelByBlocksAndByOperators)
{
  const auto blocks = workload();
  const auto operators = workload("unit: operator");
  Modules of_blocks, of_operators;
  Tensors all_of_blocks, all_of_operators;
  for (auto [model, modules, all] :
       {std::tuple(&blocks, &of_blocks, &all_of_blocks), std::tuple(&operators, &of_operators, &all_of_operators)}) {
    for (std::size_t i = 0; i < model->layers.size(); ++i) {
      modules->push_back(make_layer_module(*model, i, 5, "cpu"));
      for (const auto& parameter : modules->back()->parameters()) all->push_back(parameter);
    }
  }
  EXPECT_TRUE(same_bits(all_of_operators, all_of_blocks));
  const auto inputs = synthetic_inputs(blocks, key, "cpu");
  EXPECT_TRUE(at::equal(logits_of(operators, of_operators, inputs), logits_of(blocks, of_blocks, inputs)));
}

TEST_P(DecoderKinds, DoNotLookAhead)
{
  const auto model = workload();
  const auto modules = layers_of(model);
  auto inputs = synthetic_inputs(model, key, "cpu");
  const auto before = logits_of(model, modules, inputs);
  inputs[0].select(1, 4).add_(1).remainder_(37);
  const auto after = logits_of(model, modules, inputs);
  EXPECT_TRUE(at::allclose(before.slice(1, 0, 4), after.slice(1, 0, 4), 1e-4, 1e-6));
  EXPECT_FALSE(at::allclose(before.select(1, 4), after.select(1, 4), 1e-4, 1e-6));
}

TEST_P(DecodersOfFusedAttention, ComputeTheSameByUnfusedAttention)
{
  Tensors found[2];
  for (const bool is_fused : {false, true}) {
    const auto model = workload(is_fused ? "attention: fused" : "attention: unfused");
    const auto modules = layers_of(model);
    const auto outputs = forward_all(model, modules, synthetic_inputs(model, key, "cpu"), key);
    auto& own = found[is_fused ? 1 : 0];
    own.push_back(outputs.back()[0].clone());
    outputs.back()[0].square().sum().backward();
    for (const auto& module : modules) {
      for (const auto& parameter : module->parameters()) own.push_back(parameter.grad());
    }
  }
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    const auto error = (found[1][i] - found[0][i]).norm() / found[0][i].norm().clamp_min(1e-3);
    EXPECT_LT(error.item<double>(), 1e-4) << i;
  }
}

std::vector<std::pair<std::string, std::string>> kinds_without(const std::string& word)
{
  auto kinds = decoder_kinds();
  std::erase_if(kinds, [&](const auto& kind) { return kind.second.find(word) != std::string::npos; });
  return kinds;
}

const auto name_of_kind = [](const auto& test) { return test.param.first; };

INSTANTIATE_TEST_SUITE_P(Kinds, DecoderKinds, testing::ValuesIn(decoder_kinds()), name_of_kind);
INSTANTIATE_TEST_SUITE_P(Kinds, DecodersInParts, testing::ValuesIn(kinds_without("parallel")), name_of_kind);
INSTANTIATE_TEST_SUITE_P(Kinds, DecodersOfFusedAttention, testing::ValuesIn(kinds_without("unfused")), name_of_kind);

std::vector<double> losses_of(const std::string& keys)
{
  const auto workload = workload_from_text(
      "{" + keys +
          ", layers: 3, hidden: 24, vocabulary: 37, micro_batch: 3, sequence: 7, heads: 6, intermediate: 20, "
          "optimizer: adamw, clip_norm: 1}",
      "model.yaml");
  PlainLoop loop(workload, 7, 2);
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) losses.push_back(loop.step());
  return losses;
}

TEST(Decoders, HaveTheLossesOfAGptWrittenAsDecoder)
{
  const std::string as_gpt =
      ", norm: layer, activation: gelu_tanh, gated: false, rotary: false, positions: 9, "
      "biases: [qkv, output, mlp]";
  for (const std::string& other : {std::string(", attention: unfused"), std::string(", attention: fused"),
                                   std::string(", attention: fused, tied: true")}) {
    EXPECT_EQ(losses_of("model: decoder" + as_gpt + other), losses_of("model: gpt, positions: 9" + other)) << other;
  }
}

TEST(Decoders, HaveTheLossesOfALlamaWrittenAsDecoder)
{
  for (const std::string& other : {std::string(""), std::string(", attention: unfused"),
                                   std::string(", rope_type: llama3, rope_factor: 8, rope_theta: 100")}) {
    const std::string theta = other.find("rope_theta") == std::string::npos ? ", rope_theta: 500000" : "";
    EXPECT_EQ(losses_of("model: decoder, kv_heads: 3" + theta + other),
              losses_of("model: llama, kv_heads: 3" + theta + other))
        << other;
  }
}

TEST(Decoders, SeeTheTokensOfTheirWindowAndOfTheirChunk)
{
  struct Case {
    std::string keys;
    std::int64_t first_seen_by_5;
  };
  for (const auto& [keys, first] :
       {Case{"layer_types: [window, none, none], sliding_window: 3", 3},
        Case{"layer_types: [chunk, none, none], attention_chunk: 2", 4}, Case{"layer_types: [full, none, none]", 0}}) {
    SCOPED_TRACE(keys);
    const auto model = small_decoder("heads: 3, intermediate: 20, " + keys);
    const auto modules = layers_of(model);
    auto inputs = synthetic_inputs(model, key, "cpu");
    const auto before = logits_of(model, modules, inputs);
    for (std::int64_t token = 0; token <= 5; ++token) {
      auto changed = inputs;
      changed[0] = inputs[0].clone();
      changed[0].select(1, token).add_(1).remainder_(37);
      const auto after = logits_of(model, modules, changed);
      EXPECT_EQ(at::allclose(before.select(1, 5), after.select(1, 5), 1e-5, 1e-7), token < first) << token;
    }
  }
}

/// One layer of a decoder by operators, and its parameters.
struct Subject {
  Subject(const std::string& keys, std::size_t layer) : workload(small_decoder(keys, "unit: operator"))
  {
    Modules made;
    made.push_back(make_layer_module(workload, layer, 1, "cpu"));
    scatter(made);
    module = std::move(made.front());
    at::manual_seed(5);
    hidden = at::randn({2, 7, 24});
  }
  at::Tensor operator[](const std::string& name) const { return parameter(*module, name).detach(); }
  at::Tensor product(const std::string& name, const at::Tensor& input) const
  {
    return at::matmul(input, (*this)[name + ".weight"].t());
  }
  at::Tensor rms_norm(const std::string& name, const at::Tensor& input) const
  {
    return input / (input.square().mean(-1, true) + 1e-5).sqrt() * (*this)[name];
  }
  at::Tensor output() const { return module->forward({hidden}, key).at(0).detach(); }

  Workload workload;
  std::unique_ptr<LayerModule> module;
  at::Tensor hidden;
};

void expect_close(const at::Tensor& found, const at::Tensor& expected)
{
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(found, expected, 1e-4, 1e-5)) << (found - expected).abs().max();
}

TEST(DecoderExperts, AddUpWhatTheBestOfThemGiveForEachToken)
{
  const std::string sizes = "heads: 4, experts: 5, top_k: 2, expert_intermediate: 10, ";
  struct Case {
    std::string keys;
    bool is_sigmoid;
    bool normalizes;
    double scale;
  };
  for (const auto& [keys, is_sigmoid, normalizes, scale] :
       {Case{"norm_topk_prob: true", false, true, 1}, Case{"norm_topk_prob: false", false, false, 1},
        Case{"scoring_func: sigmoid, routed_scaling_factor: 2.5, shared_intermediate: 8, shared_gate: true", true, true,
             2.5}}) {
    SCOPED_TRACE(keys);
    const Subject subject(sizes + keys, 2);
    const auto network = [&](const std::string& prefix, const at::Tensor& input, std::int64_t which, std::int64_t all) {
      const auto matrix = [&](const std::string& name) {
        const auto stack = subject[prefix + name + ".weight"];
        return stack.narrow(0, which * (stack.size(0) / all), stack.size(0) / all);
      };
      const auto gate = matrix("gate").mv(input);
      return matrix("down").mv(gate / (1 + at::exp(-gate)) * matrix("up").mv(input));
    };
    const auto normalised = subject.rms_norm("feed_forward_norm", subject.hidden);
    auto expected = subject.hidden.clone();
    for (std::int64_t sample = 0; sample < 2; ++sample) {
      for (std::int64_t token = 0; token < 7; ++token) {
        const auto input = normalised[sample][token];
        const auto logits = subject.product("router", input);
        const auto scores = is_sigmoid ? 1 / (1 + at::exp(-logits)) : at::exp(logits) / at::exp(logits).sum();
        const auto best = scores.argsort(0, true).slice(0, 0, 2);
        const auto sum = normalizes ? scores.index_select(0, best).sum() : at::ones({});
        for (int i = 0; i < 2; ++i) {
          const auto expert = best[i].item<std::int64_t>();
          expected[sample][token] += scale * scores[expert] / sum * network("experts.", input, expert, 5);
        }
        if (is_sigmoid) {
          const auto gate = 1 / (1 + at::exp(-subject.product("shared_gate", input)));
          expected[sample][token] += gate * network("shared.", input, 0, 1);
        }
      }
    }
    expect_close(subject.output(), expected);
  }
}

TEST(LatentAttention, SharesTheRotatedPartOfItsKeys)
{
  const Subject subject(
      "layer_types: [latent], heads: 3, kv_lora_rank: 10, q_lora_rank: 8, qk_nope_head_dim: 6, "
      "qk_rope_head_dim: 2, v_head_dim: 5, intermediate: 20",
      1);
  const auto normalised = subject.rms_norm("attention_norm", subject.hidden);
  const auto queries =
      subject.product("query_up", subject.rms_norm("query_norm", subject.product("query_down", normalised)));
  const auto compressed = subject.product("key_value_down", normalised);
  const auto expanded =
      subject.product("key_value_up", subject.rms_norm("key_value_norm", compressed.slice(-1, 0, 10)));
  // One pair of numbers turns by the position.
  const auto turned = [](const at::Tensor& pairs) {
    const auto angles = at::arange(7, at::kFloat);
    const auto x = pairs.select(-1, 0), y = pairs.select(-1, 1);
    return at::stack({x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()}, -1);
  };
  Tensors heads;
  for (std::int64_t head = 0; head < 3; ++head) {
    const auto query = queries.slice(-1, head * 8, head * 8 + 8);
    const auto both = expanded.slice(-1, head * 11, head * 11 + 11);
    const auto turned_query = at::cat({query.slice(-1, 0, 6), turned(query.slice(-1, 6))}, -1);
    const auto keys = at::cat({both.slice(-1, 0, 6), turned(compressed.slice(-1, 10))}, -1);
    const auto scores = at::matmul(turned_query, keys.transpose(1, 2)) / std::sqrt(8.0);
    const auto seen = at::ones({7, 7}).tril();
    const auto shares = at::exp(scores) * seen / (at::exp(scores) * seen).sum(-1, true);
    heads.push_back(at::matmul(shares, both.slice(-1, 6)));
  }
  expect_close(subject.output(), subject.hidden + subject.product("output", at::cat(heads, -1)));
}

TEST(RotaryPositions, OfLlama3TurnSlowPartsLess)
{
  // A head of 8 numbers has four speeds: 1, 0.1, 0.01 and 0.001 turns of 2π over 2π tokens. Of 100 tokens and the
  // limits 1 and 4, the first one is fast, the third and fourth are slow, and the second turns 1.59 times: between
  // both.
  const std::string keys = "heads: 3, intermediate: 20, attention: unfused, rope_theta: 10000";
  const Subject plain(keys, 1);
  const Subject scaled(keys + ", rope_type: llama3, rope_factor: 8, original_max_position_embeddings: 100", 1);
  const double smooth = (100 * 0.1 / (2 * M_PI) - 1) / 3;
  const std::vector<double> speeds = {1, 0.1 * smooth + 0.1 / 8 * (1 - smooth), 0.01 / 8, 0.001 / 8};
  const auto attention_of = [&](const Subject& subject) {
    const auto normalised = subject.rms_norm("attention_norm", subject.hidden);
    const auto turned = [&](const at::Tensor& heads) {
      auto result = heads.clone();
      for (std::int64_t i = 0; i < 4; ++i) {
        const auto angles = at::arange(7, at::kFloat) * speeds[static_cast<std::size_t>(i)];
        const auto x = heads.select(-1, i), y = heads.select(-1, i + 4);
        result.select(-1, i).copy_(x * angles.cos() - y * angles.sin());
        result.select(-1, i + 4).copy_(y * angles.cos() + x * angles.sin());
      }
      return result;
    };
    Tensors heads;
    for (std::int64_t head = 0; head < 3; ++head) {
      const auto own = [&](const std::string& name) {
        return subject.product(name, normalised).slice(-1, head * 8, head * 8 + 8);
      };
      const auto scores = at::matmul(turned(own("query")), turned(own("key")).transpose(1, 2)) / std::sqrt(8.0);
      const auto seen = at::ones({7, 7}).tril();
      heads.push_back(at::matmul(at::exp(scores) * seen / (at::exp(scores) * seen).sum(-1, true), own("value")));
    }
    return subject.hidden + subject.product("output", at::cat(heads, -1));
  };
  expect_close(scaled.output(), attention_of(scaled));
  EXPECT_FALSE(at::allclose(plain.output(), scaled.output(), 1e-4, 1e-5));
}

TEST(MakeLayerModule, RefusesWhatOfDecodersIsOnlySimulated)
{
  const std::string dense = "heads: 6, intermediate: 20, ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"layer_types: [delta_net], linear_num_key_heads: 2, linear_num_value_heads: 2, linear_key_head_dim: 4, "
       "linear_value_head_dim: 4, intermediate: 20",
       "layer type delta_net is only simulated; those that execute are full, window, chunk and latent"},
      {"layer_types: [mamba2], mamba_heads: 2, mamba_head_dim: 4, mamba_state: 4, intermediate: 20",
       "layer type mamba2 is only simulated; those that execute are full, window, chunk and latent"},
      {dense +
           "kv_heads: 1, shared_kv: true, layer_types: [heavily_compressed], compress_rate_hca: 2, sliding_window: 4",
       "layer type heavily_compressed is only simulated; those that execute are full, window, chunk and latent"},
      {dense + "kv_heads: 1, shared_kv: true", "shared_kv is only simulated; leave it out to execute"},
      {dense + "q_lora_rank: 4",
       "q_lora_rank: compressed queries execute in layers of type latent; leave the key out to execute"},
      {dense + "o_groups: 2, o_lora_rank: 4", "o_groups is only simulated; leave it out to execute"},
      {dense + "qk_norm: weighted_keys", "qk_norm: weighted_keys is only simulated; leave it out to execute"},
      {dense + "hc_mult: 2", "hc_mult is only simulated; leave it out to execute"},
      {dense + "mtp_layers: 1",
       "mtp_layers: blocks of multi-token prediction are only simulated; leave the key out to execute"},
      {dense + "parallel: true, unit: operator",
       "parallel: true executes with unit: block, whose parts read the same residual; write that"},
      {dense + "attention_sinks: true",
       "attention_sinks: fused kernels of LibTorch do not compute it; write attention: unfused to execute"},
      {dense + "attn_logit_softcapping: 50",
       "attn_logit_softcapping: fused kernels of LibTorch do not compute it; write attention: unfused to execute"},
      {dense + "head_dim: 5", "head_dim is 5; rotary positions rotate pairs, so it must be even"},
      {dense + "rotary_dim: 3", "rotary_dim is 3; rotary positions rotate pairs, so it must be even"},
      {"layer_types: [latent], heads: 3, kv_lora_rank: 10, q_lora_rank: 8, qk_nope_head_dim: 6, qk_rope_head_dim: 2, "
       "v_head_dim: 5, intermediate: 20, index_n_heads: 2, index_head_dim: 4, index_topk: 3",
       "index_n_heads: indexers are only simulated; leave their keys out to execute"}};
  for (const auto& [keys, what] : cases) {
    const auto workload = small_decoder(keys);
    EXPECT_THAT([&] { make_layer_module(workload, 0, 1, "cpu"); },
                ThrowsMessage<InputError>(StrEq("workload decoder: " + what)));
  }
}

TEST(MakeLayerModule, RefusesShardsThatNeedSumsInsideALayer)
{
  const std::string end =
      " needs sums over the shards inside a layer, which isobar run does not compute; plan without "
      "shards, or simulate the plan";
  for (const auto& [keys, what] :
       {std::pair("norm_place: both", "norm_place: both"), std::pair("qk_norm: all_heads", "qk_norm: all_heads"),
        std::pair("embedding_norm: true", "embedding_norm")}) {
    const auto workload = small_decoder(std::string("heads: 6, intermediate: 20, unit: operator, ") + keys);
    EXPECT_THAT(
        [&] {
          make_layer_module(workload, 1, 1, "cpu", {0, 3, 6});
        },
        ThrowsMessage<InputError>(StrEq("workload decoder: " + std::string(what) + end)));
  }
}

}  // namespace
}  // namespace isobar::exec::decoder_layers_test

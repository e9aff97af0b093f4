#include "exec/model/layer_module.hpp"

#include "tests/exec/model/forward_passes.hpp"
#include "tests/support/small_models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <complex>
#include <utility>

/// Each layer against its formula, written without masks, kernels and batches of heads.
namespace isobar::exec::layer_formulas_test {
namespace {

using testing_support::shipped_workload;
using testing_support::small_model;
using testing_support::small_moe;

/// A layer whose parameters all differ from their initial values, including zeros and ones.
struct Subject {
  Subject(const std::string& name, std::size_t index) : Subject(small_model(shipped_workload(name)), index) {}
  Subject(Workload of, std::size_t index) : workload(std::move(of))
  {
    module = make_layer_module(workload, index, 1, "cpu");
    const at::NoGradGuard guard;
    for (const auto& parameter : module->parameters()) parameter.uniform_(-0.5, 0.5, generator);
  }

  at::Tensor operator[](const std::string& name) const { return parameter(*module, name); }
  at::Tensor linear(const std::string& name, const at::Tensor& input) const
  {
    return at::matmul(input, (*this)[name + ".weight"].t()) + (*this)[name + ".bias"];
  }
  at::Tensor without_bias(const std::string& name, const at::Tensor& input) const
  {
    return at::matmul(input, (*this)[name + ".weight"].t());
  }
  at::Tensor layer_norm(const std::string& name, const at::Tensor& input, double epsilon) const
  {
    const auto centred = input - input.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + epsilon).sqrt() * (*this)[name + ".weight"] +
           (*this)[name + ".bias"];
  }
  at::Tensor rms_norm(const std::string& name, const at::Tensor& input) const
  {
    return input / (input.square().mean(-1, true) + 1e-5).sqrt() * (*this)[name];
  }
  at::Tensor random(at::IntArrayRef shape) { return at::randn(shape, generator); }

  Workload workload;
  std::unique_ptr<LayerModule> module;
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
};

/// Attention over tokens [count, width]: each sees all `count` tokens, or itself and earlier ones.
at::Tensor attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, bool causal)
{
  Tensors rows;
  for (std::int64_t i = 0; i < query.size(0); ++i) {
    const auto seen = causal ? i + 1 : query.size(0);
    const auto scores = keys.slice(0, 0, seen).mv(query[i]) / std::sqrt(static_cast<double>(query.size(1)));
    const auto shares = scores.exp() / scores.exp().sum();
    rows.push_back(shares.matmul(values.slice(0, 0, seen)));
  }
  return at::stack(rows);
}

/// The same for each head of tokens [count, heads · width]; consecutive query heads may share keys and values.
at::Tensor attention_of_heads(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                              std::int64_t width, bool causal)
{
  const auto heads = query.size(1) / width;
  const auto sharing = heads / (keys.size(1) / width);
  Tensors columns;
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto from = head * width;
    const auto shared = head / sharing * width;
    columns.push_back(attention(query.slice(1, from, from + width), keys.slice(1, shared, shared + width),
                                values.slice(1, shared, shared + width), causal));
  }
  return at::cat(columns, 1);
}

void expect_close(const at::Tensor& found, const at::Tensor& expected)
{
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(found, expected, 1e-4, 1e-5)) << (found - expected).abs().max();
}

TEST(BertEmbedding, IsTheNormalisedSumOfThreeTables)
{
  Subject bert("bert10", 0);
  const auto inputs = synthetic_inputs(bert.workload, {}, "cpu");
  const auto outputs = bert.module->forward(inputs, {});
  const auto words = bert["words"].index_select(0, inputs[0][1]);
  const auto segments = bert["segments"].index_select(0, inputs[2][1]);
  expect_close(outputs[0][1], bert.layer_norm("norm", words + bert["positions"].slice(0, 0, 7) + segments, 1e-12));
  EXPECT_TRUE(at::equal(outputs[1], inputs[1].to(at::kFloat)));
}

TEST(BertAttention, EqualsAttentionOfTheTokensWithoutThePadding)
{
  Subject bert("bert10", 1);
  const auto hidden = bert.random({2, 7, 15});
  const auto mask = at::tensor({1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1}, at::kFloat).view({2, 7});
  const auto outputs = bert.module->forward({hidden, mask}, {});
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    const auto length = mask[sample].sum().item<std::int64_t>();
    const auto tokens = hidden[sample].slice(0, 0, length);
    const auto attended = attention_of_heads(bert.linear("query", tokens), bert.linear("key", tokens),
                                             bert.linear("value", tokens), 5, false);
    expect_close(outputs[0][sample].slice(0, 0, length),
                 bert.layer_norm("norm", bert.linear("output", attended) + tokens, 1e-12));
  }
}

TEST(BertFeedForward, UsesTheExactGelu)
{
  Subject up("bert10", 2);
  Subject down("bert10", 3);
  const auto hidden = up.random({2, 7, 15});
  const auto mask = at::ones({2, 7});
  const auto between = up.module->forward({hidden, mask}, {});
  const auto raised = up.linear("up", hidden);
  const auto activated = raised * (1 + at::erf(raised / std::sqrt(2.0))) / 2;
  expect_close(between[0], activated);
  expect_close(down.module->forward(between, {})[0],
               down.layer_norm("norm", down.linear("down", activated) + hidden, 1e-12));
}

TEST(BertHead, ClassifiesTheFirstToken)
{
  Subject pooler("bert10", 4);
  Subject classifier("bert10", 5);
  const auto hidden = pooler.random({2, 7, 15});
  const auto pooled = pooler.module->forward({hidden, at::ones({2, 7})}, {});
  expect_close(pooled[0], at::tanh(pooler.linear("pool", hidden.slice(1, 0, 1).squeeze(1))));
  expect_close(classifier.module->forward(pooled, {})[0], classifier.linear("classes", pooled[0]));
}

TEST(GptEmbedding, IsTheSumOfWordAndPosition)
{
  Subject gpt("gpt2_124m", 0);
  const auto inputs = synthetic_inputs(gpt.workload, {}, "cpu");
  const auto words = gpt["words"].index_select(0, inputs[0][1]);
  expect_close(gpt.module->forward(inputs, {})[0][1], words + gpt["positions"].slice(0, 0, 7));
}

TEST(GptBlock, NormalisesBeforeEachOfItsHalves)
{
  Subject gpt("gpt2_124m", 1);
  const auto hidden = gpt.random({2, 7, 10});
  const auto outputs = gpt.module->forward({hidden}, {});
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    const auto& tokens = hidden[sample];
    const auto all = gpt.linear("query_key_value", gpt.layer_norm("attention_norm", tokens, 1e-5));
    const auto attended = attention_of_heads(all.slice(1, 0, 10), all.slice(1, 10, 20), all.slice(1, 20, 30), 5, true);
    const auto between = tokens + gpt.linear("output", attended);
    const auto raised = gpt.linear("up", gpt.layer_norm("feed_forward_norm", between, 1e-5));
    const auto inner = std::sqrt(2 / M_PI) * (raised + 0.044715 * raised.pow(3));
    expect_close(outputs[0][sample], between + gpt.linear("down", raised * (1 + at::tanh(inner)) / 2));
  }
}

constexpr std::size_t gpt_head = 4;  // after the embedding and three blocks

TEST(GptHead, IsANormalisedProjection)
{
  Subject gpt("gpt2_124m", gpt_head);
  const auto hidden = gpt.random({2, 7, 10});
  expect_close(gpt.module->forward({hidden}, {})[0], gpt.without_bias("words", gpt.layer_norm("norm", hidden, 1e-5)));
}

/// Rotates pairs of elements as complex numbers.
at::Tensor rotated(const at::Tensor& tokens, std::int64_t width)
{
  const auto half = width / 2;
  auto result = tokens.clone();
  for (std::int64_t position = 0; position < tokens.size(0); ++position) {
    for (std::int64_t first = 0; first < tokens.size(1); first += width) {
      for (std::int64_t i = 0; i < half; ++i) {
        const auto angle =
            static_cast<double>(position) * std::pow(500'000, -2 * static_cast<double>(i) / static_cast<double>(width));
        const std::complex<double> pair(tokens[position][first + i].item<double>(),
                                        tokens[position][first + half + i].item<double>());
        const auto rotated_pair = pair * std::polar(1.0, angle);
        result[position][first + i] = rotated_pair.real();
        result[position][first + half + i] = rotated_pair.imag();
      }
    }
  }
  return result;
}

TEST(LlamaBlock, RotatesSharesKeysAndGates)
{
  Subject llama("llama_8b", 1);
  const at::NoGradGuard guard;
  const auto hidden = llama.random({2, 7, 36});
  const auto outputs = llama.module->forward({hidden}, {});
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    const auto& tokens = hidden[sample];
    const auto normalised = llama.rms_norm("attention_norm", tokens);
    const auto attended = attention_of_heads(rotated(llama.without_bias("query", normalised), 6),
                                             rotated(llama.without_bias("key", normalised), 6),
                                             llama.without_bias("value", normalised), 6, true);
    const auto between = tokens + llama.without_bias("output", attended);
    const auto inner = llama.rms_norm("feed_forward_norm", between);
    const auto gate = llama.without_bias("gate", inner);
    const auto gated = gate / (1 + at::exp(-gate)) * llama.without_bias("up", inner);
    expect_close(outputs[0][sample], between + llama.without_bias("down", gated));
  }
}

TEST(LlamaEnds, AreALookUpAndANormalisedProjection)
{
  Subject first("llama_8b", 0);
  const auto inputs = synthetic_inputs(first.workload, {}, "cpu");
  expect_close(first.module->forward(inputs, {})[0][1], first["words"].index_select(0, inputs[0][1]));
  Subject last("llama_8b", 3);
  const auto hidden = last.random({2, 7, 36});
  expect_close(last.module->forward({hidden}, {})[0], last.without_bias("words", last.rms_norm("norm", hidden)));
}

at::Tensor convolved(const Subject& subject, const std::string& name, const at::Tensor& images, std::int64_t stride)
{
  const auto& weight = subject[name + ".weight"];
  const auto result = at::conv2d(images, weight, {}, stride, weight.size(2) / 2);
  const auto centred = result - result.mean({0, 2, 3}, true);
  const auto variance = centred.square().mean({0, 2, 3}, true);
  return centred / (variance + 1e-5).sqrt() * subject[name + ".norm.weight"].view({1, -1, 1, 1}) +
         subject[name + ".norm.bias"].view({1, -1, 1, 1});
}

TEST(ResnetStem, ConvolvesAndPools)
{
  Subject resnet("resnet50", 0);
  const auto images = resnet.random({3, 3, 33, 33});
  expect_close(resnet.module->forward({images}, {})[0],
               at::max_pool2d(convolved(resnet, "convolution", images, 2).clamp_min(0), 3, 2, 1));
}

TEST(ResnetBlock, HasTheStrideInItsMiddleConvolution)
{
  // The first block of the first stage, one that opens a stage, one that does not.
  for (const auto& [index, channels, stride] : {std::tuple{1, 64, 1}, {4, 256, 2}, {5, 512, 1}}) {
    Subject resnet("resnet50", static_cast<std::size_t>(index));
    const auto images = resnet.random({3, channels, 8, 8});
    const auto first = convolved(resnet, "first", images, 1).clamp_min(0);
    const auto second = convolved(resnet, "second", first, stride).clamp_min(0);
    const auto residual = index == 5 ? images : convolved(resnet, "shortcut", images, stride);
    expect_close(resnet.module->forward({images}, {})[0],
                 (convolved(resnet, "third", second, 1) + residual).clamp_min(0));
  }
}

TEST(ResnetHead, ClassifiesTheMeanOfThePixels)
{
  Subject resnet("resnet50", 17);
  const auto images = resnet.random({3, 2048, 2, 2});
  expect_close(resnet.module->forward({images}, {})[0], resnet.linear("classes", images.flatten(2).mean(2)));
}

/// What the layers of a mixture of experts have before their feed-forward network or experts: a sample's tokens.
at::Tensor moe_attention(const Subject& moe, const at::Tensor& tokens, bool causal)
{
  const auto part = [&](std::int64_t i) { return at::matmul(tokens, moe["qkv.weight"][i].t()) + moe["qkv.bias"][i]; };
  const auto attended = attention_of_heads(part(0), part(1), part(2), 5, causal);
  return moe.layer_norm("norm1", tokens + moe.linear("out", attended), 1e-5);
}

TEST(MoeLayer, NormalisesAfterAttentionAndFeedForwardNetwork)
{
  for (const auto trunk : {spmd::Trunk::Plain, spmd::Trunk::Bert}) {
    Subject moe(small_moe(trunk), 3);
    const auto hidden = moe.random({2, 7, 15});
    const auto outputs = moe.module->forward({hidden}, {});
    for (std::int64_t sample = 0; sample < 2; ++sample) {
      const auto between = moe_attention(moe, hidden[sample], trunk == spmd::Trunk::Bert);
      const auto inner = moe.linear("linear1", between).clamp_min(0);
      expect_close(outputs[0][sample], moe.layer_norm("norm2", between + moe.linear("linear2", inner), 1e-5));
    }
  }
}

TEST(MoeLayer, SendsEachTokenToTheExpertsThatHaveASlotForIt)
{
  Subject moe(small_moe(spmd::Trunk::Bert), 4);
  constexpr std::int64_t choices = 2;
  constexpr std::int64_t capacity = 5;  // 2 · 7 / 3, rounded up
  const auto hidden = moe.random({2, 7, 15});
  const auto outputs = moe.module->forward({hidden}, {});
  std::int64_t dropped = 0;
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    const auto between = moe_attention(moe, hidden[sample], true);
    const auto [gates, experts] = at::softmax(at::matmul(between, moe["gate"]), -1).topk(choices, -1);
    auto of_experts = at::zeros_like(between);
    std::vector<std::int64_t> filled(3, 0);
    for (std::int64_t choice = 0; choice < choices; ++choice) {
      for (std::int64_t token = 0; token < 7; ++token) {
        const auto expert = experts[token][choice].item<std::int64_t>();
        if (filled[static_cast<std::size_t>(expert)]++ >= capacity) {
          ++dropped;
          continue;
        }
        const auto inner = at::matmul(between[token], moe["w1"][expert]).clamp_min(0);
        of_experts[token] += gates[token][choice] / gates[token].sum() * at::matmul(inner, moe["w2"][expert]);
      }
    }
    expect_close(outputs[0][sample], moe.layer_norm("norm2", between + of_experts, 1e-5));
  }
  EXPECT_GT(dropped, 0);
}

TEST(MoeEnds, AreThoseOfTheirTrunk)
{
  Subject words(small_moe(spmd::Trunk::Bert), 0);
  const auto tokens = synthetic_inputs(words.workload, {}, "cpu");
  const auto embedded = words.module->forward(tokens, {})[0][1][2];
  const auto row = words["embedding.weight"][tokens[0][1][2].item<std::int64_t>()] * std::sqrt(15.0);
  EXPECT_NEAR(embedded[0].item<double>(), row[0].item<double>() + std::sin(2.0), 1e-5);
  EXPECT_NEAR(embedded[1].item<double>(), row[1].item<double>() + std::cos(2.0), 1e-5);

  Subject images(small_moe(spmd::Trunk::Vit), 0);
  const auto pixels = images.random({3, 3, 12, 12});
  const auto patches = at::conv2d(pixels, images["patches.weight"], images["patches.bias"], 4).flatten(2);
  const auto with_class = at::cat({images["class_token"].expand({3, 1, 15}), patches.transpose(1, 2)}, 1);
  expect_close(images.module->forward({pixels}, {})[0], with_class + images["positions"]);
  Subject classifier(small_moe(spmd::Trunk::Vit), 6);
  const auto hidden = classifier.random({3, 10, 15});
  expect_close(classifier.module->forward({hidden}, {})[0], classifier.linear("linear", hidden.select(1, 0)));

  const Subject first(small_moe(spmd::Trunk::Plain), 0);
  const Subject last(small_moe(spmd::Trunk::Plain), 6);
  EXPECT_TRUE(first.module->forward({hidden}, {})[0].is_same(hidden));
  EXPECT_TRUE(last.module->forward({hidden}, {})[0].is_same(hidden)) << "the loss adds it up";
}

}  // namespace
}  // namespace isobar::exec::layer_formulas_test

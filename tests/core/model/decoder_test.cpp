#include "core/errors.hpp"
#include "core/model/decoder/decoder_file.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/differences.hpp"
#include "core/model/models.hpp"
#include "core/model/split_text.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace isobar::decoder_test {
namespace {

const std::string dense =
    "model: decoder\n"
    "layers: 4\n"
    "hidden: 64\n"
    "vocabulary: 1000\n"
    "heads: 8\n"
    "kv_heads: 2\n"
    "head_dim: 16\n"
    "intermediate: 96\n"
    "sequence: 32\n"
    "micro_batch: 3\n"
    "dtype: bf16\n";

const std::string latent =
    "model: decoder\n"
    "layers: 2\n"
    "hidden: 64\n"
    "vocabulary: 1000\n"
    "layer_types: [latent]\n"
    "heads: 8\n"
    "q_lora_rank: 24\n"
    "kv_lora_rank: 16\n"
    "qk_nope_head_dim: 8\n"
    "qk_rope_head_dim: 4\n"
    "v_head_dim: 12\n"
    "intermediate: 96\n"
    "sequence: 32\n";

/// Two layers of each kind of attention that DeepSeek-V4 has, in samples that no rate divides.
const std::string compressed =
    "model: decoder\n"
    "layers: 6\n"
    "hidden: 64\n"
    "vocabulary: 1000\n"
    "layer_types: [window, compressed_sparse, heavily_compressed]\n"
    "heads: 8\n"
    "kv_heads: 1\n"
    "head_dim: 16\n"
    "sliding_window: 6\n"
    "qk_norm: weighted_keys\n"
    "attention_sinks: true\n"
    "shared_kv: true\n"
    "q_lora_rank: 24\n"
    "o_groups: 4\n"
    "o_lora_rank: 12\n"
    "compress_rate_csa: 4\n"
    "compress_rate_hca: 8\n"
    "index_n_heads: 2\n"
    "index_head_dim: 10\n"
    "index_topk: 3\n"
    "intermediate: 96\n"
    "sequence: 35\n"
    "micro_batch: 2\n"
    "dtype: bf16\n";

const std::string mixture =
    "model: decoder\n"
    "layers: 3\n"
    "hidden: 64\n"
    "vocabulary: 1000\n"
    "mlp_layer_types: [dense, experts*2]\n"
    "heads: 4\n"
    "intermediate: 96\n"
    "experts: 16\n"
    "top_k: 2\n"
    "expert_intermediate: 32\n"
    "shared_intermediate: 48\n"
    "sequence: 32\n"
    "unit: operator\n";

Workload workload_of(const std::string& text, const WorkloadSettings& settings = {})
{
  return workload_from_text(text, "decoder.yaml", settings);
}

std::string fault_of(const std::string& text)
{
  try {
    workload_of(text);
    return "none";
  } catch (const InputError& fault) {
    return fault.what();
  }
}

std::string without(std::string text, const std::string& key)
{
  const std::size_t at = text.find("\n" + key + ": ") + 1;
  return text.erase(at, text.find('\n', at) + 1 - at);
}

const Layer& layer_of(const Workload& workload, const std::string& name)
{
  for (const auto& layer : workload.layers) {
    if (layer.name == name) return layer;
  }
  throw std::invalid_argument(name);
}

TEST(Decoder, IsALlamaIfItHasLlamasSizes)
{
  const std::string sizes =
      "layers: 3\nhidden: 64\nheads: 8\nkv_heads: 2\nintermediate: 96\nvocabulary: 1000\nsequence: 32\nmicro_batch: 2\n"
      "unit: operator\n";
  const auto llama = workload_of("model: llama\n" + sizes);
  const auto decoder = workload_of("model: decoder\n" + sizes);
  ASSERT_EQ(decoder.layers.size(), llama.layers.size());
  for (std::size_t i = 0; i < llama.layers.size(); ++i) {
    EXPECT_EQ(decoder.layers[i].name, llama.layers[i].name);
    EXPECT_EQ(decoder.layers[i].parameters, llama.layers[i].parameters);
    EXPECT_EQ(decoder.layers[i].output, llama.layers[i].output);
    EXPECT_EQ(decoder.layers[i].backward_weight, llama.layers[i].backward_weight);
    // A decoder's attention counts the pairs that tokens see.
    const double pairs = decoder.layers[i].name.ends_with("attention") ? 33.0 / 64 : 1;
    const Flops of_pairs = llama.layers[i].forward - llama.layers[i].backward_weight;
    EXPECT_EQ(decoder.layers[i].forward - decoder.layers[i].backward_weight, pairs * of_pairs);
  }
}

TEST(Decoder, HasHeadsOfAWidthOfItsOwn)
{
  const auto workload = workload_of(dense, {{"unit", "operator"}});
  const Layer& attention = layer_of(workload, "block0.attention");
  EXPECT_EQ(attention.parameters, 64U * 16 * (8 + 2 * 2) + 64 * 128 + 64);
  const double tokens = 3 * 32;
  const double pairs = 3 * 32 * 33 / 2.0;
  EXPECT_EQ(attention.forward, Flops(2 * tokens * 64 * (16 * 12 + 128) + 2 * pairs * 8 * 2 * 16));
  EXPECT_EQ(attention.backward, 2 * attention.forward);
  // Input and its norm, queries, keys, values and their sums, and a number of each head.
  EXPECT_EQ(attention.activations, Bytes(2 * tokens * (2 * 64 + 2 * 128 + 2 * 32) + 4 * tokens * 8));
  ASSERT_TRUE(attention.split);
  EXPECT_EQ(attention.split->units, 2U);
  EXPECT_EQ(attention.split->parameters, 64U * 16 * 12 + 64 * 128);
  EXPECT_EQ(attention.split->activations, Bytes(2 * tokens * (2 * 128 + 2 * 32) + 4 * tokens * 8));
  const Layer& mlp = layer_of(workload, "block0.mlp");
  EXPECT_EQ(mlp.parameters, 3U * 64 * 96 + 64);
  EXPECT_EQ(mlp.activations, Bytes(2 * tokens * (2 * 64 + 3 * 96)));  // 4h + 6f bytes a token
}

// Megatron-Core with Transformer Engine keeps 8h + 2d(a + 2g) + 2ad + 4a + 6f bytes a token and block in 16 bits.
TEST(Decoder, KeepsTheActivationsOfLlama3sBlocks)
{
  const auto workload = workload_of(
      "model: decoder\nlayers: 1\nhidden: 8192\nvocabulary: 1000\nheads: 64\nkv_heads: 8\nintermediate: 28672\n"
      "sequence: 16\ndtype: bf16\n");
  EXPECT_EQ(layer_of(workload, "block0").activations, Bytes(16.0 * 274'688));
}

TEST(Decoder, CountsThePairsThatTokensSee)
{
  const auto pairs_of = [](const std::string& type, const WorkloadSettings& more) {
    WorkloadSettings settings = {{"layer_types", "[" + type + "]"}, {"micro_batch", "1"}};
    settings.insert(more.begin(), more.end());
    const auto workload = workload_of(dense, settings);
    const Layer& block = layer_of(workload, "block0");
    return (block.forward - block.backward_weight).value / (2.0 * 8 * 2 * 16);
  };
  EXPECT_EQ(pairs_of("full", {}), 32 * 33 / 2.0);
  for (const std::uint64_t window : {1U, 2U, 5U, 31U, 32U, 33U, 1000U}) {
    double pairs = 0;
    for (std::uint64_t token = 0; token < 32; ++token) pairs += static_cast<double>(std::min(token + 1, window));
    EXPECT_EQ(pairs_of("window", {{"sliding_window", fmt::to_string(window)}}), pairs) << window;
  }
  for (const std::uint64_t chunk : {1U, 5U, 8U, 32U, 100U}) {
    double pairs = 0;
    for (std::uint64_t token = 0; token < 32; ++token) pairs += static_cast<double>(token % chunk + 1);
    EXPECT_EQ(pairs_of("chunk", {{"attention_chunk", fmt::to_string(chunk)}}), pairs) << chunk;
  }
}

TEST(Decoder, CompressesQueriesKeysAndValues)
{
  const auto workload = workload_of(latent, {{"unit", "operator"}});
  const Layer& attention = layer_of(workload, "block1.attention");
  const std::uint64_t undivided = 64 * 24 + 64 * (16 + 4);
  const std::uint64_t divided = 24 * 8 * (8 + 4) + 16 * 8 * (8 + 12) + 8 * 12 * 64;
  EXPECT_EQ(attention.parameters, undivided + divided + 24 + 16 + 64);
  EXPECT_EQ(attention.split->units, 8U);
  EXPECT_EQ(attention.split->parameters, divided);
  EXPECT_EQ(attention.forward,
            Flops(2.0 * 32 * static_cast<double>(undivided + divided) + 2.0 * 32 * 33 / 2 * 8 * (12 + 12)));
  // docs/costs.md#activations-of-decoders, in float32
  const double numbers = 2 * 64 + 2 * (24 + 16 + 4) + 8 * (2 * 12 + 12) + 8 * (8 + 12) + 8 * 12;
  EXPECT_EQ(attention.activations, Bytes(4.0 * 32 * numbers + 4.0 * 32 * 8));
  const auto whole = workload_of(without(latent, "q_lora_rank"), {{"unit", "operator"}});
  EXPECT_EQ(layer_of(whole, "block1.attention").parameters, attention.parameters - 64 * 24 - 24 * 96 - 24 + 64 * 96);
}

TEST(Decoder, ScoresAllTokensInItsIndexer)
{
  const WorkloadSettings indexer = {
      {"index_n_heads", "2"}, {"index_head_dim", "8"}, {"index_topk", "5"}, {"unit", "operator"}};
  const auto without_indexer = workload_of(latent, {{"unit", "operator"}});
  const Layer& plain = layer_of(without_indexer, "block0.attention");
  const auto workload = workload_of(latent, indexer);
  const Layer& sparse = layer_of(workload, "block0.attention");
  EXPECT_EQ(sparse.parameters - plain.parameters, 24U * 16 + 64 * 8 + 64 * 2 + 2 * 8);
  double seen = 0;
  for (int token = 1; token <= 32; ++token) seen += std::min(token, 5);
  EXPECT_EQ(sparse.forward - sparse.backward_weight, Flops(2 * seen * 8 * 24 + 2.0 * 32 * 33 / 2 * 2 * 8));
}

TEST(Decoder, CompressesQueriesAndOutputsOfHeadsThatShareKeys)
{
  const auto workload = workload_of(compressed, {{"unit", "operator"}});
  const Layer& window = layer_of(workload, "block0.attention");
  const std::uint64_t undivided = 64 * 24 + 64 * 16;                     // queries, and keys that are values
  const std::uint64_t divided = 24 * 128 + 4 * 32 * 12 + 48 * 64;        // queries, groups of outputs, and the output
  EXPECT_EQ(window.parameters, undivided + divided + 24 + 16 + 8 + 64);  // norms of queries and keys, sinks
  const double tokens = 2 * 35;
  double seen = 0;
  for (int token = 1; token <= 35; ++token) seen += std::min(token, 6);
  EXPECT_EQ(window.backward_weight, Flops(2 * tokens * static_cast<double>(undivided + divided)));
  EXPECT_EQ(window.forward - window.backward_weight, Flops(2 * 2 * seen * 8 * 32));
  ASSERT_TRUE(window.split);
  EXPECT_EQ(window.split->units, 4U);  // groups of outputs
  EXPECT_EQ(window.split->parameters, divided + 8);
  EXPECT_TRUE(window.split->products.empty());
  // Queries before and after their norm and their sums, groups of outputs; a number of each head.
  const double of_heads = 2 * tokens * (3 * 128 + 4 * 12) + 4 * tokens * 8;
  EXPECT_EQ(window.split->activations, Bytes(of_heads));
  // The layer's input, its norm; compressed queries and keys, before and after their norms.
  EXPECT_EQ(window.activations, Bytes(2 * tokens * (2 * 64 + 2 * 24 + 2 * 16) + of_heads));
  const auto uncompressed =
      workload_of(without(without(compressed, "o_lora_rank"), "o_groups"), {{"unit", "operator"}});
  const Layer& whole = layer_of(uncompressed, "block0.attention");
  EXPECT_EQ(whole.parameters, window.parameters - 4 * 32 * 12 - 48 * 64 + 128 * 64);
  EXPECT_EQ(whole.split->units, 8U);
}

TEST(Decoder, SeesEntriesOfSeveralTokens)
{
  const auto workload = workload_of(compressed, {{"unit", "operator"}});
  const Layer& window = layer_of(workload, "block0.attention");
  const Layer& sparse = layer_of(workload, "block1.attention");
  const Layer& heavy = layer_of(workload, "block2.attention");
  EXPECT_EQ(heavy.parameters - window.parameters, 64U * 32 + 8 * 16 + 16);
  EXPECT_EQ(sparse.parameters - window.parameters, 64U * 64 + 4 * 32 + 16 + (64 * 40 + 4 * 20 + 10) + 24 * 20 + 64 * 2);
  double of_heavy = 0, of_sparse = 0, scored = 0;
  for (int token = 1; token <= 35; ++token) {
    of_heavy += token / 8;
    of_sparse += std::min(token / 4, 3);
    scored += token / 4;
  }
  const auto of_pairs = [](const Layer& layer) { return layer.forward - layer.backward_weight; };
  EXPECT_EQ(of_pairs(heavy) - of_pairs(window), Flops(2 * 2 * of_heavy * 8 * 32));
  EXPECT_EQ(of_pairs(sparse) - of_pairs(window), Flops(2 * 2 * (of_sparse * 8 * 32 + scored * 2 * 10)));
  // Numbers and weights of entries, and entries before and after their norms.
  const double tokens = 2 * 35;
  EXPECT_DOUBLE_EQ((heavy.activations - window.activations).value, 2 * tokens * (2 * 16 + 2 * 16 / 8.0));
  EXPECT_DOUBLE_EQ((sparse.activations - window.activations).value,
                   2 * tokens * (4 * 16 + 2 * 16 / 4.0 + 4 * 10 + 2 * 10 + 2 * 10 / 4.0));
  EXPECT_EQ(sparse.split->parameters, window.split->parameters);
  // Unfused attention keeps a score of each token and entry.
  const auto unfused = workload_of(compressed, {{"unit", "operator"}, {"attention", "unfused"}});
  const double scores = (layer_of(unfused, "block2.attention").activations - heavy.activations).value;
  EXPECT_DOUBLE_EQ(scores, 2 * tokens * 8 * (35 + 4) - 4 * tokens * 8);
}

RC_GTEST_PROP(Decoder, CountsEveryPairOfATokenAndAnEntry, ())
{
  DecoderSizes sizes;
  sizes.window = *rc::gen::inRange<std::uint64_t>(1, 50);
  sizes.compression = {*rc::gen::inRange<std::uint64_t>(1, 20), *rc::gen::inRange<std::uint64_t>(1, 20)};
  sizes.indexer.kept = *rc::gen::inRange<std::uint64_t>(1, 30);
  const auto sequence = *rc::gen::inRange<std::uint64_t>(1, 200);
  std::uint64_t sparse = 0, heavy = 0, scored = 0;
  for (std::uint64_t token = 1; token <= sequence; ++token) {
    const std::uint64_t entries = token / sizes.compression.sparse;
    sparse += std::min(token, sizes.window) + std::min(entries, sizes.indexer.kept);
    heavy += std::min(token, sizes.window) + token / sizes.compression.heavy;
    scored += entries;
  }
  RC_ASSERT(seen_pairs(sizes, Mixer::CompressedSparse, sequence) == static_cast<double>(sparse));
  RC_ASSERT(seen_pairs(sizes, Mixer::HeavilyCompressed, sequence) == static_cast<double>(heavy));
  RC_ASSERT(scored_pairs(sizes, Mixer::CompressedSparse, sequence) == static_cast<double>(scored));
  RC_ASSERT(scored_pairs(sizes, Mixer::HeavilyCompressed, sequence) == 0);
}

TEST(Decoder, HasResidualsOfSeveralStreams)
{
  const auto one = workload_of(dense, {{"unit", "operator"}});
  const auto four = workload_of(dense, {{"unit", "operator"}, {"hc_mult", "4"}});
  ASSERT_EQ(four.layers.size(), one.layers.size());
  const double tokens = 3 * 32;
  for (std::size_t i = 1; i + 1 < one.layers.size(); ++i) {
    const Layer& plain = one.layers[i];
    const Layer& mixed = four.layers[i];
    EXPECT_EQ(mixed.parameters - plain.parameters, 24U * 4 * 64 + 24 + 3) << plain.name;
    EXPECT_EQ(mixed.output, 4 * plain.output);  // what crosses a cut
    EXPECT_EQ(mixed.gradient, 4 * plain.gradient);
    EXPECT_EQ(mixed.backward_weight - plain.backward_weight, Flops(2 * tokens * 24 * 4 * 64));
    EXPECT_EQ(mixed.forward - plain.forward, Flops(2 * tokens * (24 * 4 * 64 + 4 * 4 * 64)));
    // Streams and the part's output in 16 bits, and weights before and after their function in float32.
    EXPECT_EQ(mixed.activations - plain.activations, Bytes(tokens * (2 * 5 * 64 + 8 * 24)));
    EXPECT_GT(mixed.workspace + mixed.activations, plain.workspace + plain.activations);
  }
  EXPECT_EQ(four.layers.front().output, one.layers.front().output);  // all streams are the embedding
  const Layer& plain = one.layers.back();
  const Layer& head = four.layers.back();
  EXPECT_EQ(head.parameters - plain.parameters, 4U * 4 * 64 + 4 + 1);
  EXPECT_EQ(head.forward - plain.forward, Flops(2 * tokens * 4 * 4 * 64));
  EXPECT_EQ(head.activations - plain.activations, Bytes(tokens * (2 * 4 * 64 + 8 * 4)));
  for (const auto& layer : four.layers) EXPECT_FALSE(layer.split) << layer.name;
  EXPECT_EQ(why_whole(four), "hyper-connections (hc_mult) read all streams");
  EXPECT_EQ(why_whole(one), "a gpt or llama needs unit: operator");
  const auto blocks = workload_of(dense, {{"hc_mult", "4"}});
  EXPECT_EQ(all_parameters(blocks), all_parameters(four));
  EXPECT_EQ(layer_of(blocks, "block0").output, layer_of(four, "block0.mlp").output);
}

// DeepSeek-V4's own code has a product of each stream, one of the embedding, and a collapse of its own.
TEST(Decoder, PredictsFurtherFromAllStreams)
{
  const WorkloadSettings further = {{"unit", "operator"}, {"hc_mult", "4"}, {"mtp_layers", "1"}};
  const auto workload = workload_of(dense, further);
  const auto without_mtp = workload_of(dense, {{"unit", "operator"}, {"hc_mult", "4"}});
  const Layer& last = layer_of(workload, "block3.attention");
  const Layer& first = layer_of(workload, "mtp0.attention");
  const double tokens = 3 * 32;
  EXPECT_EQ(first.parameters - last.parameters, 2U * 64 * 64 + 3 * 64 + 4 * 4 * 64 + 4 + 1);
  EXPECT_EQ(first.forward - last.forward, Flops(2 * tokens * 5 * 64 * 64));
  EXPECT_EQ(first.activations - last.activations, Bytes(2 * tokens * (2 + 2 * 4) * 64));
  EXPECT_EQ(first.output, 2 * last.output);
  EXPECT_EQ(workload.layers.back().forward, 2 * without_mtp.layers.back().forward);
}

// The embedding of the next token is that of the first layer, and the head computes all logits.
TEST(Decoder, PredictsFurtherWithTheEmbeddingOfTheFirstLayer)
{
  for (const char* unit : {"block", "operator"}) {
    for (const char* tied : {"false", "true"}) {
      const auto workload = workload_of(dense, {{"unit", unit}, {"mtp_layers", "2"}, {"tied", tied}});
      std::vector<std::string> users;
      for (const Layer& layer : workload.layers) {
        if (!layer.tied_to) continue;
        users.push_back(layer.name);
        EXPECT_EQ(layer.tied_to, 0U);
        EXPECT_EQ(layer.tied_parameters, 1000U * 64);
        EXPECT_FALSE(layer.has_tied_copy);
      }
      const std::string first = std::string(unit) == "operator" ? ".attention" : "";
      std::vector<std::string> expected = {"mtp0" + first, "mtp1" + first};
      if (std::string(tied) == "true") expected.push_back("head");
      EXPECT_EQ(users, expected) << unit << ", " << tied;
    }
  }
}

TEST(Decoder, HasRecurrentLayers)
{
  const std::string text =
      "model: decoder\nlayers: 2\nhidden: 64\nvocabulary: 1000\nlayer_types: [delta_net, mamba2]\n"
      "linear_num_key_heads: 2\nlinear_num_value_heads: 4\nlinear_key_head_dim: 8\nlinear_value_head_dim: 16\n"
      "mamba_heads: 8\nmamba_head_dim: 16\nmamba_state: 32\nmamba_groups: 2\nbiases: [convolution]\n"
      "intermediate: 96\nsequence: 32\nunit: operator\n";
  const auto workload = workload_of(text);
  const Layer& net = layer_of(workload, "block0.attention");
  EXPECT_EQ(net.parameters, 64U * (2 * 16 + 2 * 64 + 2 * 4) + 4 * (2 * 16 + 64) + 2 * 4 + 16 + 64 * 64 + 64);
  const double products = 32.0 * (64 * (2 * 16 + 2 * 64 + 2 * 4) + 64 * 64);
  EXPECT_EQ(net.forward, Flops(2 * (products + 32.0 * 4 * (2 * 16 + 64) + 32.0 * 4 * 4 * 16 * 16)));
  EXPECT_EQ(net.split->units, 2U);
  const Layer& mamba = layer_of(workload, "block1.attention");
  const std::uint64_t convolved = 128 + 2 * 2 * 32;
  EXPECT_EQ(mamba.parameters, 64U * (128 + convolved + 8) + 5 * convolved + 3 * 8 + 128 + 128 * 64 + 64);
  EXPECT_EQ(mamba.split->units, 2U);
}

TEST(Decoder, GivesExpertsToTheirLayers)
{
  const auto workload = workload_of(mixture);
  EXPECT_FALSE(layer_of(workload, "block0.mlp").experts);
  const Layer& mlp = layer_of(workload, "block1.mlp");
  ASSERT_TRUE(mlp.experts);
  const Experts& experts = *mlp.experts;
  EXPECT_EQ(experts.count, 16U);
  EXPECT_EQ(experts.per_token, 2U);
  EXPECT_EQ(experts.parameters, 16U * 3 * 64 * 32);
  EXPECT_EQ(mlp.parameters, experts.parameters + 64 * 16 + 3 * 64 * 48 + 64);
  EXPECT_EQ(experts.forward, Flops(2.0 * 32 * 2 * 3 * 64 * 32));
  EXPECT_EQ(mlp.forward - experts.forward, Flops(2.0 * 32 * (64 * 16 + 3 * 64 * 48)));
  EXPECT_EQ(experts.dispatched, Bytes(4.0 * 32 * 2 * 64));
  EXPECT_EQ(experts.activations, experts.dispatched + Bytes(4.0 * 32 * 2 * 3 * 32));
  EXPECT_EQ(mlp.activations, experts.activations + Bytes(4.0 * 32 * (2 * 64 + 3 * 48) + 8.0 * 32 * 16));
  EXPECT_EQ(mlp.split->parameters, experts.parameters + 3 * 64 * 48);
  EXPECT_EQ(mlp.split->units, 16U);  // columns that both kinds of experts have
  const auto blocks = workload_of(mixture, {{"unit", "block"}});
  EXPECT_FALSE(layer_of(blocks, "block1").experts);  // they lie within it
  EXPECT_EQ(all_parameters(blocks), all_parameters(workload));
}

TEST(Decoder, LetsExpertsWorkOnALatentVector)
{
  const auto workload = workload_of(mixture, {{"moe_latent_size", "24"}, {"gated", "false"}});
  const Layer& mlp = layer_of(workload, "block2.mlp");
  EXPECT_EQ(mlp.experts->parameters, 16U * 2 * 24 * 32);
  EXPECT_EQ(mlp.parameters, mlp.experts->parameters + 64 * 16 + 2 * 64 * 24 + 2 * 64 * 48 + 64);
  EXPECT_EQ(mlp.experts->dispatched, Bytes(4.0 * 32 * 2 * 24));
}

TEST(Decoder, HasLayersOnlyForPartsThatBlocksHave)
{
  const auto workload =
      workload_of(dense, {{"layer_types", "[full, none]"}, {"mlp_layer_types", "[none, dense]"}, {"unit", "operator"}});
  std::vector<std::string> names;
  for (const auto& layer : workload.layers) names.push_back(layer.name);
  EXPECT_THAT(names, testing::ElementsAre("embedding", "block0.attention", "block1.mlp", "block2.attention",
                                          "block3.mlp", "head"));
  const auto& sizes = std::get<DecoderSizes>(workload.model);
  EXPECT_EQ(layers_of(sizes), workload.layers.size());
  EXPECT_EQ(decoder_layer(2, sizes).kind, DecoderLayer::Kind::FeedForward);
  EXPECT_EQ(decoder_layer(2, sizes).block, 1U);
  EXPECT_EQ(decoder_layer(5, sizes).kind, DecoderLayer::Kind::Head);
}

TEST(Decoder, TiesItsHeadAsAGptDoes)
{
  const auto tied = workload_of(dense, {{"tied", "true"}});
  const auto apart = workload_of(dense, {{"tied", "apart"}});
  EXPECT_EQ(all_parameters(apart) - matrix_of_head(apart), all_parameters(tied));
  EXPECT_EQ(matrix_of_head(apart), 64'000U);
  EXPECT_EQ(tied.layers.back().tied_to, 0U);
  EXPECT_EQ(tied.layers.back().forward, apart.layers.back().forward);
  EXPECT_EQ(tied.layers.back().backward_weight, Flops(0));
}

TEST(Decoder, CountsNormsWhereTheyAre)
{
  const auto parameters = [](const std::string& place, const std::string& norm, const std::string& parallel) {
    const auto workload = workload_of(dense, {{"norm_place", place}, {"norm", norm}, {"parallel", parallel}});
    return all_parameters(workload);
  };
  const std::uint64_t before = parameters("before", "rms", "false");
  EXPECT_EQ(parameters("after", "rms", "false"), before);
  EXPECT_EQ(parameters("both", "rms", "false"), before + 4 * 2 * 64);
  EXPECT_EQ(parameters("shared", "rms", "true"), before - 4 * 64);
  EXPECT_EQ(parameters("before", "layer", "false"), before + (4 * 2 + 1) * 64);
  EXPECT_EQ(parameters("before", "layer_without_bias", "false"), before);
  EXPECT_EQ(parameters("before", "layer_without_weights", "false"), before - (4 * 2 + 1) * 64);
}

TEST(Decoder, CountsTheBiasesThatAFileNames)
{
  const auto more = [](const std::string& text, const std::string& biases) {
    return all_parameters(workload_of(text, {{"biases", biases}})) - all_parameters(workload_of(text));
  };
  EXPECT_EQ(more(dense, "[qkv]"), 4U * 16 * 12);
  EXPECT_EQ(more(dense, "[output]"), 4U * 64);
  EXPECT_EQ(more(dense, "[mlp]"), 4U * (2 * 96 + 64));
  EXPECT_EQ(more(mixture, "[experts, router]"), 2U * 16 * (2 * 32 + 64) + 2 * 16);
  EXPECT_EQ(more(latent, "[qkv]"), 2U * (24 + 16 + 4));
}

TEST(Decoder, KeepsAnotherMicroBatch)
{
  for (const auto& text : {dense, latent, mixture, compressed + "hc_mult: 2\n"}) {
    const auto workload = workload_of(text);
    const auto other = with_micro_batch(workload, 6);
    EXPECT_EQ(workload_to_json(other), workload_to_json(workload_of(text, {{"micro_batch", "6"}})));
  }
}

RC_GTEST_PROP(Decoder, WritesPatternsThatReadBack, ())
{
  const auto layers = *rc::gen::inRange<std::size_t>(1, 40);
  const auto of_kinds = *rc::gen::container<std::vector<bool>>(layers, rc::gen::arbitrary<bool>());
  std::vector<std::string_view> names = {"full"};
  for (const bool is_full : of_kinds) names.emplace_back(is_full ? "full" : "none");
  const auto workload =
      workload_of(dense, {{"layers", fmt::to_string(names.size())}, {"layer_types", decoder::pattern_of(names)}});
  const auto& blocks = std::get<DecoderSizes>(workload.model).blocks;
  RC_ASSERT(blocks.size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) RC_ASSERT(name_of(blocks[i].mixer) == names[i]);
}

TEST(Decoder, WritesTheShortestPattern)
{
  EXPECT_EQ(decoder::pattern_of({"a", "a", "a"}), "[a]");
  EXPECT_EQ(decoder::pattern_of({"a", "b", "a", "b", "a"}), "[a, b]");
  EXPECT_EQ(decoder::pattern_of({"a", "a", "b", "a", "a"}), "[a*2, b]");
  EXPECT_EQ(decoder::pattern_of({"a", "b", "b", "b"}), "[a, b*3]");
}

TEST(Decoder, NamesTheLineAndTheKeyOfEachFault)
{
  const auto fault = [](const std::string& text, const std::string& line) {
    const std::string what = fault_of(text + line + "\n");
    const auto lines = std::count(text.begin(), text.end(), '\n') + 1;
    const std::string place = fmt::format("decoder.yaml:{}: ", lines);
    EXPECT_THAT(what, testing::StartsWith(place));
    return what.substr(std::min(what.size(), place.size()));
  };
  EXPECT_EQ(fault(dense, "layer_types: [full, windows]"),
            "layer_types: \"windows\" is no entry; write none, full, window, chunk, latent, compressed_sparse, "
            "heavily_compressed, delta_net, mamba2, or "
            "several at once as mamba2*3");
  EXPECT_EQ(fault(dense, "layer_types: [full*5]"), "layer_types: lists more than the 4 layers; write at most as many");
  EXPECT_EQ(fault(dense, "layer_types: [full*0]"),
            "layer_types: \"full*0\" is no entry; write none, full, window, chunk, latent, compressed_sparse, "
            "heavily_compressed, delta_net, mamba2, or "
            "several at once as mamba2*3");
  EXPECT_EQ(fault(dense, "layer_types: []"),
            "layer_types: is empty; write a list of none, full, window, chunk, latent, compressed_sparse, "
            "heavily_compressed, delta_net, mamba2");
  EXPECT_EQ(fault(dense, "sliding_window: 8"),
            "sliding_window: goes with layer types window, compressed_sparse and heavily_compressed; leave it out");
  EXPECT_EQ(fault(dense, "v_head_dim: 8"), "v_head_dim: goes with layer type latent; leave it out");
  EXPECT_EQ(fault(dense, "experts: 8\nmlp_layer_types: [dense]").substr(0, 60),
            "experts: goes with mlp layer type experts; leave it out");
  EXPECT_EQ(fault(dense, "mamba_heads: 8"), "mamba_heads: goes with layer type mamba2; leave it out");
  EXPECT_EQ(fault(dense, "rotary_dim: 17"), "rotary_dim: 17 is more than head_dim, 16; write at most as many");
  EXPECT_EQ(fault(dense, "rope_factor: 8"),
            "rope_factor: goes with rope_type: linear or llama3; leave it out, or write that");
  EXPECT_EQ(fault(dense, "rope_low_freq_factor: 2\nrope_type: linear\nrope_factor: 2"),
            "rope_low_freq_factor: goes with rope_type: llama3; leave it out, or write that");
  EXPECT_EQ(fault(dense, "rope_high_freq_factor: 1\nrope_type: llama3\nrope_factor: 2"),
            "rope_high_freq_factor: 1 is not above rope_low_freq_factor, 1; write more");
  EXPECT_EQ(fault(dense, "scoring_func: sigmoid"), "scoring_func: goes with mlp layer type experts; leave it out");
  EXPECT_EQ(fault(dense, "zero_centered_gamma: true\nnorm: layer"),
            "zero_centered_gamma: goes with norm: rms; leave it out");
  EXPECT_EQ(fault(dense, "attn_logit_softcapping: 0"), "attn_logit_softcapping: is 0; write a positive number");
  EXPECT_EQ(
      fault(latent, "query_pre_attn_scalar: 4"),
      "query_pre_attn_scalar: goes with layer types full, window, chunk, compressed_sparse and heavily_compressed; "
      "leave it out");
  EXPECT_EQ(fault(dense, "norm_place: shared"), "norm_place: shared goes with parallel: true; write that, or before");
  EXPECT_EQ(fault(dense, "biases: [qkv, all]"),
            "biases: \"all\" is none; write a list of qkv, output, mlp, experts, router, convolution, mamba");
  EXPECT_EQ(fault(dense, "attention: recomputed"),
            "attention: recomputed is of gpt and llama; write fused, which keeps no scores, or unfused");
  EXPECT_EQ(fault(dense, "mtp_layer_types: [full]"),
            "mtp_layer_types: goes with mtp_layers; leave it out, or write that");
  EXPECT_EQ(fault(dense, "norm_epsilon: 0"), "norm_epsilon: is 0; write a positive number");
  EXPECT_EQ(fault(dense, "rotary: [maybe]"),
            "rotary: \"maybe\" is no entry; write false, true, or several at once as true*3");
  EXPECT_THAT(fault(dense, "dropout: 0.1"), testing::StartsWith("dropout: unknown key; "));
  EXPECT_EQ(fault(without(mixture, "top_k"), "top_k: 17"),
            "top_k: 17 is more than the 16 experts; write at most as many");
  EXPECT_EQ(fault(without(latent, "q_lora_rank"), "index_n_heads: 2\nindex_head_dim: 8\nindex_topk: 4"),
            "index_n_heads: an indexer reads compressed queries; write q_lora_rank");
  EXPECT_EQ(fault_of(dense + "o_groups: 4\n"),
            "decoder.yaml:1: o_lora_rank: missing; write a whole number from 1 to 1048576");
  EXPECT_EQ(fault(dense, "o_lora_rank: 4"), "o_lora_rank: goes with o_groups; leave it out");
  EXPECT_EQ(fault(dense, "o_groups: 3\no_lora_rank: 4"), "o_groups: 3 does not divide heads, 8; write a divisor of it");
  EXPECT_EQ(fault(dense, "compress_rate_csa: 4"),
            "compress_rate_csa: goes with layer type compressed_sparse; leave it out");
  EXPECT_EQ(fault(dense, "index_n_heads: 4"),
            "index_n_heads: goes with layer types latent and compressed_sparse; leave it out");
  EXPECT_EQ(fault(without(compressed, "kv_heads"), "kv_heads: 2"),
            "kv_heads: 2; shared_kv: true is of one head of keys, so write 1");
  EXPECT_EQ(fault(without(compressed, "shared_kv"), "shared_kv: false"),
            "shared_kv: entries of compressed layers are keys and values at once; write true");
  EXPECT_EQ(fault_of(without(compressed, "q_lora_rank")),
            "decoder.yaml:17: index_n_heads: an indexer reads compressed queries; write q_lora_rank");
  EXPECT_EQ(fault_of(without(compressed, "index_n_heads")),
            "decoder.yaml:1: index_n_heads: missing; write a whole number from 1 to 1048576");
  EXPECT_EQ(fault(dense, "hc_mult: 2\nparallel: true"),
            "hc_mult: several streams go with norm_place: before and parallel: false; write these");
  EXPECT_EQ(fault(dense, "hc_mult: 17"), "hc_mult: \"17\" is out of range; write a whole number from 1 to 16");
  EXPECT_EQ(fault(without(dense, "kv_heads"), "kv_heads: 3"),
            "kv_heads: 3 does not divide heads, 8; write a divisor of it");
  EXPECT_EQ(fault(without(dense, "layers"), "layers: 10001").substr(0, 40),
            "layers: \"10001\" is out of range; write a");
  EXPECT_EQ(fault_of(without(without(dense, "head_dim"), "heads") + "heads: 7\n"),
            "decoder.yaml:1: head_dim: missing; 7 heads do not divide hidden, 64");
  EXPECT_EQ(fault_of("model: decoder\nlayers: 2\nhidden: 64\nvocabulary: 10\nlayer_types: [none]\nmlp_layer_types: "
                     "[none]\nsequence: 8\n"),
            "decoder.yaml:6: mlp_layer_types: layer 0 has neither this nor a layer_type; write one");
  EXPECT_EQ(fault_of(without(dense, "intermediate")),
            "decoder.yaml:1: intermediate: missing; write a whole number from 1 to 4194304");
}

TEST(Decoder, RefusesMoreParametersThanNumbersHold)
{
  const std::string what = fault_of(
      "model: decoder\nlayers: 100\nhidden: 1048576\nvocabulary: 10\nheads: 1\nhead_dim: 64\nexperts: 65536\ntop_k: 1\n"
      "expert_intermediate: 4194304\nsequence: 8\n");
  EXPECT_THAT(what, testing::StartsWith("decoder.yaml:2: layers: have about 8.65e+19 parameters; write sizes with at "
                                        "most 1e+13"));
}

}  // namespace
}  // namespace isobar::decoder_test

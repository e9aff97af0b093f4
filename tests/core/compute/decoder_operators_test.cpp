#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/transformer.hpp"
#include "core/model/workload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace isobar::decoder_operators_test {
namespace {

using compute::TransformerLayer;

const std::string sizes =
    "layers: 2\nhidden: 64\nheads: 8\nkv_heads: 2\nintermediate: 96\nvocabulary: 1000\nsequence: 32\nmicro_batch: 2\n"
    "dtype: bf16\nunit: operator\n";
const std::string mixture =
    "model: decoder\nlayers: 2\nhidden: 64\nheads: 8\nvocabulary: 1000\nexperts: 16\ntop_k: 2\nexpert_intermediate: "
    "32\n"
    "shared_intermediate: 48\nsequence: 32\nmicro_batch: 2\ndtype: bf16\nunit: operator\n";

Framework plain()
{
  Framework framework;
  framework.memory.activations = 1;
  return framework;
}

TransformerLayer operators_of(const Workload& workload, const std::string& name)
{
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    if (workload.layers[layer].name == name) return compute::transformer_layer(workload, layer, 1, plain());
  }
  throw std::invalid_argument(name);
}

TEST(DecoderOperators, AreThoseOfALlamaWithTheSameSizes)
{
  const auto llama = workload_from_text("model: llama\n" + sizes, "llama.yaml");
  const auto decoder = workload_from_text("model: decoder\n" + sizes, "decoder.yaml");
  for (std::size_t layer = 0; layer < llama.layers.size(); ++layer) {
    const auto ours = compute::transformer_layer(decoder, layer, 1, plain());
    const auto theirs = compute::transformer_layer(llama, layer, 1, plain());
    ASSERT_EQ(ours.linears.size(), theirs.linears.size());
    for (std::size_t i = 0; i < ours.linears.size(); ++i) {
      EXPECT_EQ(ours.linears[i].rows, theirs.linears[i].rows);
      EXPECT_EQ(ours.linears[i].inputs, theirs.linears[i].inputs);
      EXPECT_EQ(ours.linears[i].outputs, theirs.linears[i].outputs);
      EXPECT_EQ(ours.linears[i].divides_inputs, theirs.linears[i].divides_inputs);
    }
    EXPECT_EQ(ours.scores, theirs.scores);
    EXPECT_EQ(ours.rotated, theirs.rotated);
    EXPECT_EQ(ours.norms, theirs.norms);
    EXPECT_EQ(ours.residuals, theirs.residuals);
    EXPECT_EQ(ours.inner, theirs.inner);
    EXPECT_EQ(ours.host_share, theirs.host_share);
    EXPECT_EQ(ours.vocabulary, theirs.vocabulary);
    if (ours.scores == 0) continue;
    EXPECT_EQ(ours.seen, 33.0 / 64);  // of 32 x 33 / 2 pairs; a llama takes half of all
    EXPECT_EQ(theirs.seen, 0.5);
  }
}

TEST(DecoderOperators, OfExpertsAreEqualProductsOfTheirRows)
{
  const auto workload = workload_from_text(mixture, "mixture.yaml");
  const auto mlp = operators_of(workload, "block1.mlp");
  ASSERT_EQ(mlp.linears.size(), 5U);  // router, two of the experts, two of the shared one
  EXPECT_FALSE(mlp.linears[0].is_divided);
  EXPECT_EQ(mlp.linears[0].outputs, 16);
  for (const std::size_t i : {1U, 2U}) {
    EXPECT_EQ(mlp.linears[i].products, 16);
    EXPECT_EQ(mlp.linears[i].rows, 64.0 * 2 / 16);
    EXPECT_TRUE(mlp.linears[i].is_divided);
  }
  EXPECT_EQ(mlp.linears[1].outputs, 2 * 32);
  EXPECT_EQ(mlp.linears[3].rows, 64);
  EXPECT_EQ(mlp.inner, 2 * 32 + 48);
  EXPECT_EQ(mlp.routed, 2 * 2 * 64);
  double work = 0;
  for (const auto& linear : mlp.linears) work += 2 * linear.rows * linear.inputs * linear.outputs * linear.products;
  const auto layer = std::find_if(workload.layers.begin(), workload.layers.end(),
                                  [](const Layer& each) { return each.name == "block1.mlp"; });
  EXPECT_EQ(Flops(work), layer->forward);
}

TEST(DecoderOperators, OfAWindowComputeThePairsInIt)
{
  const auto workload =
      workload_from_text("model: decoder\n" + sizes + "layer_types: [window]\nsliding_window: 4\n", "w.yaml");
  EXPECT_EQ(operators_of(workload, "block0.attention").seen, (4 * 32 - 6) / (32.0 * 32));
}

TEST(DecoderOperators, OfRecurrentLayersHaveNoScores)
{
  const auto workload = workload_from_text(
      "model: decoder\nlayers: 1\nhidden: 64\nvocabulary: 1000\nlayer_types: [mamba2]\nmamba_heads: 8\nmamba_head_dim: "
      "16\n"
      "mamba_state: 32\nmamba_groups: 2\nintermediate: 96\nsequence: 32\nunit: operator\n",
      "mamba.yaml");
  const auto mamba = operators_of(workload, "block0.attention");
  EXPECT_EQ(mamba.scores, 0);
  EXPECT_EQ(mamba.recurrence, Flops(2 * 32.0 * (4 * (128 + 128) + 3.5 * 128 * 32)));
}

/// Attention with entries of several tokens, whose work and memory shards divide.
const std::string compressed =
    "model: decoder\nlayers: 2\nhidden: 64\nheads: 8\nkv_heads: 1\nintermediate: 96\n"
    "vocabulary: 1000\nsequence: 32\nmicro_batch: 2\ndtype: bf16\nunit: operator\n"
    "layer_types: [compressed_sparse, heavily_compressed]\nhead_dim: 16\n"
    "sliding_window: 6\nqk_norm: weighted_keys\nshared_kv: true\nq_lora_rank: 24\n"
    "o_groups: 2\no_lora_rank: 12\ncompress_rate_csa: 4\ncompress_rate_hca: 8\n"
    "index_n_heads: 2\nindex_head_dim: 10\nindex_topk: 3\n";

double work_of(const TransformerLayer& layer)
{
  double work = layer.recurrence.value + 4 * layer.scores * layer.seen * layer.width;
  for (const auto& linear : layer.linears) work += 2 * linear.rows * linear.inputs * linear.outputs * linear.products;
  return work;
}

TEST(DecoderOperators, ComputeAllWorkOfLayersWithEntriesAndStreams)
{
  for (const auto& text : {compressed, compressed + "hc_mult: 4\n", compressed + "hc_mult: 4\nmtp_layers: 1\n",
                           compressed + "attention: unfused\n"}) {
    const auto workload = workload_from_text(text, "decoder.yaml");
    for (std::size_t layer = 1; layer < workload.layers.size(); ++layer) {
      const auto operators = compute::transformer_layer(workload, layer, 1, plain());
      EXPECT_DOUBLE_EQ(work_of(operators), workload.layers[layer].forward.value) << workload.layers[layer].name;
    }
  }
}

TEST(DecoderOperators, KeepOneStreamOrAllOfThem)
{
  const auto workload = workload_from_text(compressed + "hc_mult: 4\n", "decoder.yaml");
  for (std::size_t layer = 1; layer + 1 < workload.layers.size(); ++layer) {
    EXPECT_EQ(compute::layer_memory(workload, layer, plain()).kept, workload.layers[layer].activations);
    const auto recomputed = with_recomputation(workload, {layer});
    const Bytes input(2 * 64.0 * 4 * 64);  // all streams of 64 tokens in 16 bits, as those that cross a cut
    EXPECT_EQ(compute::layer_memory(recomputed, layer, plain()).kept, input);
    EXPECT_EQ(workload.layers[layer].output, input);
  }
  const auto attention = operators_of(workload, "block0.attention");
  EXPECT_EQ(attention.streams, 4);
  EXPECT_EQ(attention.connections, 1);
  EXPECT_EQ(attention.linears.back().inputs, 4 * 64);
  EXPECT_FALSE(attention.linears.back().is_divided);
  const auto without = workload_from_text(compressed, "decoder.yaml");
  EXPECT_EQ(operators_of(without, "block0.attention").connections, 0);
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    EXPECT_EQ(compute::parameters_of_shard(workload, layer, 1, plain()),
              static_cast<double>(workload.layers[layer].parameters));
  }
}

TEST(DecoderOperators, KeepTheActivationsOfTheirLayers)
{
  for (const auto& text : {"model: decoder\n" + sizes, mixture, mixture + "mtp_layers: 2\n", compressed}) {
    const auto workload = workload_from_text(text, "decoder.yaml");
    for (std::size_t layer = 1; layer + 1 < workload.layers.size(); ++layer) {
      const auto whole = compute::layer_memory(workload, layer, plain());
      EXPECT_EQ(whole.kept, workload.layers[layer].activations) << workload.layers[layer].name;
      const auto& split = *workload.layers[layer].split;
      const auto half = compute::layer_memory(workload, layer, plain(), {.shards = 2});
      EXPECT_EQ(half.kept, workload.layers[layer].activations - 0.5 * split.activations);
      const auto sequence = compute::layer_memory(workload, layer, plain(), {.shards = 2, .divides_sequence = true});
      EXPECT_EQ(sequence.kept, 0.5 * workload.layers[layer].activations);
    }
  }
}

TEST(DecoderOperators, HaveTheParametersOfTheirShards)
{
  for (const auto& text : {"model: decoder\n" + sizes, mixture, compressed}) {
    const auto workload = workload_from_text(text, "decoder.yaml");
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const Layer& own = workload.layers[layer];
      EXPECT_EQ(compute::parameters_of_shard(workload, layer, 1, plain()), static_cast<double>(own.parameters))
          << own.name;
      const double repeated = static_cast<double>(own.parameters - own.split->parameters);
      EXPECT_EQ(compute::parameters_of_shard(workload, layer, 2, plain()),
                repeated + static_cast<double>(own.split->parameters) / 2)
          << own.name;
    }
  }
}

}  // namespace
}  // namespace isobar::decoder_operators_test

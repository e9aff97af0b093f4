#pragma once

#include "core/model/append_layer.hpp"
#include "core/model/decoder/decoder_sizes.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <cstdint>
#include <vector>

namespace isobar::decoder {

/// Attention but for latent one.
bool is_attention(Mixer mixer);
/// Numbers of a token in the keys and values of all heads.
std::uint64_t keys_and_values(const DecoderSizes& sizes);
/// Numbers of a token of which an entry takes its mean, and as many weights: of each entry that the token is in.
std::uint64_t compressed_numbers(const DecoderSizes& sizes, Mixer mixer);
/// Likewise of the indexer's entries.
std::uint64_t indexed_numbers(const DecoderSizes& sizes, Mixer mixer);

/// The operators of a block.
BlockOperators operators_of(const DecoderSizes& sizes, const DecoderBlock& block);

/// A product of each token, or of those that come to an expert, with a matrix of parameters.
struct DecoderProduct {
  BlockOperator of = BlockOperator::Qkv;  ///< a part of it
  std::uint64_t inputs = 0;
  std::uint64_t outputs = 0;
  std::uint64_t matrices = 1;   ///< of experts, one each
  std::uint64_t per_token = 1;  ///< through how many of them a token goes
  bool is_routed = false;       ///< of experts
  bool is_quantized = true;     ///< a recipe of 8 or 4 bits is for it: not for routers and gates
  /// How tensor parallelism divides it: not at all (each shard computes all of it), its outputs or its inputs.
  enum class Division : std::uint8_t { None, Outputs, Inputs };
  Division division = Division::Outputs;
  bool has_bias = false;

  std::uint64_t weights() const { return inputs * outputs * matrices; }
  std::uint64_t biases() const { return has_bias ? outputs * matrices : 0; }
  std::uint64_t multiply_adds_of_token() const { return inputs * outputs * per_token; }
};

/// The products of a part of a block, in the order in which they run.
std::vector<DecoderProduct> products_of(const DecoderSizes& sizes, Mixer mixer);
std::vector<DecoderProduct> products_of(const DecoderSizes& sizes, FeedForward network);

/// Normalizations of `hidden` numbers in a part of a block.
std::uint64_t norms_of_mixer(const DecoderSizes& sizes);
std::uint64_t norms_of_feed_forward(const DecoderSizes& sizes);

/// The core of a mixer: what it computes beside its products. Multiply-adds are of a sample.
struct MixerCore {
  double attention = 0;           ///< scores of pairs of tokens, and their use
  double recurrence = 0;          ///< other ones, convolutions among them
  double convolved = 0;           ///< of `recurrence`, those of convolutions, which have parameters
  std::uint64_t query_width = 0;  ///< of attention: numbers of a head's query
  std::uint64_t value_width = 0;
  std::uint64_t rotated = 0;  ///< numbers of a token that rotary positions turn
  std::uint64_t normed = 0;   ///< numbers of a token in norms beside those of `hidden` numbers

  double multiply_adds() const { return attention + recurrence; }
};
MixerCore core_of(const DecoderSizes& sizes, const DecoderBlock& block, std::uint64_t sequence);

/// What joins a part of a block to a residual of several streams: a manifold-constrained hyper-connection (Xie et al.
/// 2025, arXiv 2512.24880) as DeepSeek-V4 has it (transformers 5.24.0, models/deepseek_v4/modeling_deepseek_v4.py).
/// It is a product of all streams of a token, whose outputs are the weights with which the streams are added up and
/// mixed. Adding up is no work, as in norms; it is bound by memory.
struct HyperConnection {
  std::uint64_t inputs = 0;   ///< numbers of all streams
  std::uint64_t outputs = 0;  ///< weights of a token, each with a bias
  std::uint64_t scales = 0;   ///< one of each kind of weights
  double mixing = 0;          ///< multiply-adds of a token: streams with streams
  double kept_numbers = 0;    ///< of a token, in the workload's dtype; weights in float32 come in addition

  std::uint64_t parameters() const { return inputs * outputs + outputs + scales; }
};

/// Gives a part of a block its input and takes its output. Sizes have several streams.
HyperConnection connection_of_part(const DecoderSizes& sizes);
/// Adds streams up before the norm of the head, or of a block of multi-token prediction.
HyperConnection connection_of_head(const DecoderSizes& sizes);

/// Adds a connection to what computes its input or reads what it gives.
void add_connection(LayerSizes& layer, const HyperConnection& connection, const Workload& workload);

/// The mixer of a block as a layer of its own, "attention", and its feed-forward network, "mlp". The block has one.
LayerSizes mixer_of(const DecoderSizes& sizes, const DecoderBlock& block, const Workload& workload);
LayerSizes feed_forward_of(const DecoderSizes& sizes, const DecoderBlock& block, const Workload& workload);

/// Parameters that a token uses: of experts those through which it passes, and the head's matrix, but no embedding.
/// Blocks of multi-token prediction do not count.
std::uint64_t parameters_of_token(const DecoderSizes& sizes);

/// States of tokens that a block of multi-token prediction keeps beyond those of its parts: the embedding and each
/// stream of the residual, before and after their norms.
double kept_states_of_mtp(const DecoderSizes& sizes);

}  // namespace isobar::decoder

#include "core/compute/transformer.hpp"

#include "core/compute/layer_time.hpp"
#include "core/errors.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <variant>

namespace isobar::compute {

namespace {

// Kernels of layers as parts of those of a block: embedding and head by profiles/sailor at micro-batches that the host
// bounds, the operators by counting kernels.
constexpr double attention_share = 0.6;
constexpr double feed_forward_share = 0.4;
// Operators of these and of the norm and residual before and after them, of those of a block of a gpt:
// results/fidelity/operators/issued.csv.
constexpr double latent_share = 1.3;
constexpr double experts_share = 1.2;  // with a router, and copies to experts and back
constexpr double shared_share = 0.25;
constexpr double embedding_share = 0.3;
constexpr double small_share = 0.2;

double number(std::uint64_t count)
{
  return static_cast<double>(count);
}

class Builder {
 public:
  Builder(const Workload& workload, double hidden)
      : tokens_(samples_of_microbatch(workload) * number(workload.sequence)),
        samples_(samples_of_microbatch(workload)),
        sequence_(number(workload.sequence))
  {
    layer_.tokens = tokens_;
    layer_.hidden = hidden;
    layer_.host_share = 0;
  }

  /// Attention of an encoder, to all tokens.
  void attention(Attention how, double heads)
  {
    const double hidden = layer_.hidden;
    layer_.linears.push_back({tokens_, hidden, 3 * hidden, false, true});
    layer_.linears.push_back(
        {.rows = tokens_, .inputs = hidden, .outputs = hidden, .divides_inputs = true, .shares_input = true});
    layer_.kept_heads = 4 * hidden;
    scores(how, heads, hidden / heads);
    add_part(1);
    layer_.host_share += attention_share;
  }
  void scores(Attention how, double heads, double width) { scores(how, heads, width, sequence_); }
  /// Of each token with `keys` ones.
  void scores(Attention how, double heads, double width, double keys)
  {
    layer_.attention = how;
    layer_.heads = heads;
    layer_.scores = samples_ * heads * sequence_ * keys;
    layer_.width = width;
  }
  /// Adds what surrounds a part of a block.
  void add_part(double norms)
  {
    layer_.norms += norms;
    layer_.residuals += 1;
  }
  void up(double intermediate)
  {
    layer_.linears.push_back({tokens_, layer_.hidden, intermediate, false, true});
    layer_.inner = intermediate;
    layer_.host_share += feed_forward_share / 2;
  }
  void down(double intermediate)
  {
    layer_.linears.push_back({tokens_, intermediate, layer_.hidden, true, true});
    add_part(1);
    layer_.host_share += feed_forward_share / 2;
  }
  void embedding(double words, double others)
  {
    layer_.looked_up = (words + others) * layer_.hidden;
    layer_.divided_table = words * layer_.hidden;
    layer_.host_share += embedding_share;
  }
  void of_samples(double outputs)
  {
    layer_.linears.push_back({.rows = samples_, .inputs = layer_.hidden, .outputs = outputs, .is_quantized = false});
    layer_.host_share += small_share;
  }
  double samples() const { return samples_; }
  double sequence() const { return sequence_; }
  TransformerLayer& layer() { return layer_; }

 private:
  double tokens_;
  double samples_;
  double sequence_;
  TransformerLayer layer_;
};

double padded(std::uint64_t vocabulary, std::size_t shards, const Framework& framework)
{
  return number(framework.pads_vocabulary ? padded_vocabulary(vocabulary, shards) : vocabulary);
}

/// A layer of a decoder whose block has those parts.
class DecoderOperators {
 public:
  DecoderOperators(const Workload& workload, std::size_t layer, const DecoderSizes& sizes, std::size_t shards)
      : sizes_(sizes),
        sequence_(workload.sequence),
        groups_(workload.experts),
        shards_(shards),
        imbalance_(workload.layers[layer].experts ? workload.layers[layer].experts->imbalance : 1),
        builder_(workload, number(sizes.hidden)),
        layer_(builder_.layer())
  {
  }

  TransformerLayer embedding(double vocabulary)
  {
    builder_.embedding(vocabulary, number(sizes_.positions));
    if (sizes_.has_embedding_norm) layer_.norms += 1;
    return layer_;
  }

  TransformerLayer parts(const DecoderBlock& block, bool has_mixer, bool has_feed_forward, bool predicts_further)
  {
    if (has_mixer) add_mixer(block);
    if (has_feed_forward) add_feed_forward(block);
    const bool begins_block = has_mixer || block.mixer == Mixer::None;
    if (predicts_further && begins_block) add_product_of_mtp();
    return layer_;
  }

  /// For each prediction of a token.
  TransformerLayer head(double vocabulary)
  {
    layer_.tokens *= 1 + number(sizes_.mtp_blocks.size());
    layer_.linears.push_back({.rows = layer_.tokens,
                              .inputs = number(sizes_.hidden),
                              .outputs = vocabulary,
                              .has_bias = false,
                              .is_quantized = false});
    layer_.norms = 1;
    layer_.vocabulary = vocabulary;
    layer_.has_tied_head = sizes_.tied;
    layer_.host_share = 1;
    if (sizes_.streams > 1) add_connection(decoder::connection_of_head(sizes_));
    return layer_;
  }

 private:
  /// The product of a state and an embedding, and their norms. Of several streams, each has a product, and the
  /// embedding one for all.
  void add_product_of_mtp()
  {
    const double hidden = layer_.hidden;
    const auto streams = number(sizes_.streams);
    if (sizes_.streams == 1) {
      layer_.linears.push_back({layer_.tokens, 2 * hidden, hidden, false, false, false});
    } else {
      layer_.linears.push_back({layer_.tokens, hidden, hidden, false, false, false});
      layer_.linears.push_back({streams * layer_.tokens, hidden, hidden, false, false, false});
    }
    layer_.norms += 2 + streams;
  }

  /// A product in float32 of all streams, which others keep, and what reads and writes them.
  void add_connection(const decoder::HyperConnection& connection)
  {
    layer_.linears.push_back({.rows = layer_.tokens,
                              .inputs = number(connection.inputs),
                              .outputs = number(connection.outputs),
                              .is_divided = false,
                              .is_quantized = false,
                              .shares_input = true});
    layer_.recurrence += Flops(2 * layer_.tokens * connection.mixing);
    layer_.streams = number(sizes_.streams);
    layer_.connections += 1;
    layer_.host_share += small_share;
  }

  /// `kept`: the product of those whose input others keep; as many as there are for none.
  void add(const std::vector<decoder::DecoderProduct>& products, std::size_t kept)
  {
    using Division = decoder::DecoderProduct::Division;
    bool reads_state = false;
    for (const auto& product : products) {
      const double rows = layer_.tokens * number(product.per_token) / number(product.matrices);
      auto& linear = layer_.linears.emplace_back(TransformerLayer::Linear{
          rows, number(product.inputs), number(product.outputs), product.division == Division::Inputs, product.has_bias,
          product.division != Division::None, number(product.matrices)});
      linear.is_grouped = product.is_routed && product.matrices > 1;
      linear.is_quantized = product.is_quantized;
      linear.of = product.of;
      const bool is_of_state =
          !linear.divides_inputs && !product.is_routed && product.matrices == 1 && product.inputs == sizes_.hidden;
      linear.shares_input = (is_of_state && reads_state) || &product == products.data() + kept;
      reads_state = reads_state || is_of_state;
      if (linear.is_grouped) divide(linear);
    }
  }

  /// A device has some of the experts, and gets the tokens of all devices of its group for them.
  void divide(TransformerLayer::Linear& of_experts) const
  {
    of_experts.rows *= imbalance_ * number(groups_.degree);
    of_experts.products /= number(groups_.parts(shards_));
    if (groups_.are_whole) of_experts.is_divided = false;
  }

  void add_mixer(const DecoderBlock& block)
  {
    const auto core = decoder::core_of(sizes_, block, sequence_);
    const auto products = decoder::products_of(sizes_, block.mixer);
    const bool has_groups = block.mixer != Mixer::Latent && sizes_.output_groups.count > 0;
    // Attention keeps its sums, which the products of the output read.
    add(products, core.query_width > 0 ? products.size() - (has_groups ? 2 : 1) : products.size());
    const auto keys_of_all = number(keys_of_sample(sizes_, block.mixer, sequence_));
    layer_.rotated = number(core.rotated);
    if (core.query_width > 0) {
      const std::uint64_t widths = core.query_width + core.value_width;
      builder_.scores(sizes_.attention, number(sizes_.heads), number(widths) / 2, keys_of_all);
      layer_.is_causal = true;
      layer_.seen = sizes_.model == DecoderModel::Decoder
                        ? seen_pairs(sizes_, block.mixer, sequence_) / (builder_.sequence() * keys_of_all)
                        : causal_part;
      const std::uint64_t keys = block.mixer == Mixer::Latent ? sizes_.heads : sizes_.kv_heads;
      layer_.kept_heads = number((sizes_.heads + keys) * widths);
    }
    layer_.recurrence += Flops(2 * builder_.samples() * core.recurrence);
    layer_.normed_heads = number(core.normed);
    builder_.add_part(number(decoder::norms_of_mixer(sizes_)));
    layer_.host_share += block.mixer == Mixer::Latent ? latent_share : attention_share;
    if (sizes_.streams > 1) add_connection(decoder::connection_of_part(sizes_));
  }

  void add_feed_forward(const DecoderBlock& block)
  {
    const auto products = decoder::products_of(sizes_, block.feed_forward);
    add(products, products.size());
    layer_.is_gated = sizes_.is_gated;
    if (block.feed_forward == FeedForward::Experts) {
      const ExpertSizes& experts = sizes_.experts;
      const std::uint64_t width = experts.latent > 0 ? experts.latent : sizes_.hidden;
      layer_.inner = imbalance_ * number(experts.per_token * experts.intermediate) + number(experts.shared);
      layer_.shared_inner = number(experts.shared);
      layer_.routed = 2 * imbalance_ * number(experts.per_token * width);
      layer_.host_share += experts_share + (experts.shared > 0 ? shared_share : 0);
    } else {
      layer_.inner = number(sizes_.intermediate);
      layer_.host_share += feed_forward_share;
    }
    builder_.add_part(number(decoder::norms_of_feed_forward(sizes_)));
    if (sizes_.streams > 1) add_connection(decoder::connection_of_part(sizes_));
  }

  static constexpr double causal_part = 0.5;
  const DecoderSizes& sizes_;
  std::uint64_t sequence_;
  ExpertParallelism groups_;
  std::size_t shards_;
  double imbalance_;  // of the tokens that come to a device's experts
  Builder builder_;
  TransformerLayer& layer_;
};

TransformerLayer decoder_layer_of(const Workload& workload, std::size_t index, const DecoderLayer& layer,
                                  const DecoderSizes& sizes, const DecoderBlock& block, double vocabulary,
                                  std::size_t shards)
{
  using Kind = DecoderLayer::Kind;
  DecoderOperators operators(workload, index, sizes, shards);
  switch (layer.kind) {
    case Kind::Embedding:
      return operators.embedding(vocabulary);
    case Kind::Head:
      return operators.head(vocabulary);
    default:
      break;
  }
  const bool has_mixer = layer.kind != Kind::FeedForward && block.mixer != Mixer::None;
  const bool has_feed_forward = layer.kind != Kind::Attention && block.feed_forward != FeedForward::None;
  const bool is_mtp = !sizes.mtp_blocks.empty() && layer.block >= sizes.blocks.size();  // parts of a gpt have one block
  return operators.parts(block, has_mixer, has_feed_forward, is_mtp);
}

constexpr std::size_t layers_of_encoder = 3;

TransformerLayer encoder(const Workload& workload, std::size_t layer, const BertSizes& sizes, double vocabulary)
{
  constexpr double segments = 2;
  Builder builder(workload, number(sizes.hidden));
  const std::size_t pooler = 1 + layers_of_encoder * sizes.encoders;
  if (layer == 0) {
    builder.embedding(vocabulary, number(sizes.positions) + segments);
    builder.layer().norms = 1;
  } else if (layer == pooler) {
    builder.of_samples(number(sizes.hidden));
  } else if (layer > pooler) {
    builder.of_samples(number(sizes.classes));
  } else if ((layer - 1) % layers_of_encoder == 0) {
    builder.attention(sizes.attention, number(sizes.heads));
  } else if ((layer - 1) % layers_of_encoder == 1) {
    builder.up(number(sizes.intermediate));
  } else {
    builder.down(number(sizes.intermediate));
  }
  return builder.layer();
}

}  // namespace

TransformerLayer transformer_layer(const Workload& workload, std::size_t layer, std::size_t shards,
                                   const Framework& framework)
{
  ensure(layer < workload.layers.size(), "a layer of the workload");
  if (const auto* bert = std::get_if<BertSizes>(&workload.model)) {
    return encoder(workload, layer, *bert, padded(bert->vocabulary, shards, framework));
  }
  const auto uniform = [&](const auto& sizes) {
    const DecoderSizes parts = decoder_parts_of(sizes);
    return decoder_layer_of(workload, layer, decoder_layer(layer, sizes.layers, sizes.unit), parts,
                            parts.blocks.front(), padded(sizes.vocabulary, shards, framework), shards);
  };
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) return uniform(*gpt);
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) return uniform(*llama);
  if (const auto* sizes = std::get_if<DecoderSizes>(&workload.model)) {
    const DecoderLayer which = decoder_layer(layer, *sizes);
    return decoder_layer_of(workload, layer, which, *sizes, decoder_block(*sizes, which.block),
                            padded(sizes->vocabulary, shards, framework), shards);
  }
  throw InputError("workload " + workload.name,
                   "has no operators that are known; compute: operators takes models bert, "
                   "gpt, llama and decoder; use compute: rate");
}

BlockOfLayers block_of(const Workload& workload, std::size_t layer)
{
  const auto of_decoder = [layer](const auto& sizes) -> BlockOfLayers {
    switch (decoder_layer(layer, sizes.layers, sizes.unit).kind) {
      case DecoderLayer::Kind::Attention:
        return {layer, layer + 1};
      case DecoderLayer::Kind::FeedForward:
        return {layer - 1, layer};
      default:
        return {layer, layer};
    }
  };
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) return of_decoder(*gpt);
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) return of_decoder(*llama);
  if (const auto* sizes = std::get_if<DecoderSizes>(&workload.model)) {
    const DecoderLayer which = decoder_layer(layer, *sizes);
    const DecoderBlock& block = decoder_block(*sizes, which.block);
    const bool is_pair = block.mixer != Mixer::None && block.feed_forward != FeedForward::None;
    if (is_pair && which.kind == DecoderLayer::Kind::Attention) return {layer, layer + 1};
    if (is_pair && which.kind == DecoderLayer::Kind::FeedForward) return {layer - 1, layer};
    return {layer, layer};
  }
  if (const auto* bert = std::get_if<BertSizes>(&workload.model)) {
    if (layer == 0 || layer > layers_of_encoder * bert->encoders) return {layer, layer};
    const std::size_t first = layer - (layer - 1) % layers_of_encoder;
    return {first, first + layers_of_encoder - 1};
  }
  return {layer, layer};
}

std::vector<std::size_t> ends_of_blocks(const Workload& workload)
{
  std::vector<std::size_t> ends;
  const auto* decoder = std::get_if<DecoderSizes>(&workload.model);
  const bool is_uniform =
      std::holds_alternative<GptSizes>(workload.model) || std::holds_alternative<LlamaSizes>(workload.model);
  if (decoder == nullptr && !is_uniform) return ends;
  for (std::size_t layer = 1; layer + 1 < workload.layers.size(); layer = ends.back() + 1) {
    ends.push_back(block_of(workload, layer).last);
  }
  if (decoder != nullptr) ends.resize(decoder->blocks.size());  // those of multi-token prediction follow
  return ends;
}

BlockOperators operators_of(const Workload& workload, std::size_t layer)
{
  using Kind = DecoderLayer::Kind;
  const auto part_of = [](BlockOperators all, Kind kind) {
    const auto only = [&](std::size_t first, std::size_t end) { return all &= BlockOperators::range(first, end); };
    if (kind == Kind::Block) return all;
    if (kind == Kind::Attention) return only(0, operators_of_attention);
    if (kind == Kind::FeedForward) return only(operators_of_attention, operators_of_block);
    return BlockOperators();
  };
  const auto uniform = [&](const auto& sizes) {
    return part_of(BlockOperators::uniform(), decoder_layer(layer, sizes.layers, sizes.unit).kind);
  };
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) return uniform(*gpt);
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) return uniform(*llama);
  const auto* decoder = std::get_if<DecoderSizes>(&workload.model);
  if (decoder == nullptr) return {};
  const DecoderLayer which = decoder_layer(layer, *decoder);
  if (which.kind == Kind::Embedding || which.kind == Kind::Head) return {};
  return part_of(decoder::operators_of(*decoder, decoder_block(*decoder, which.block)), which.kind);
}

namespace {

/// Of a block of a gpt or llama, those of its attention that `attention: recomputed` names, and what lies between
/// neighbours.
BlockOperators of_uniform_block(const Workload& workload, Attention attention, BlockOperators operators)
{
  if (attention == Attention::Recomputed) {
    for (const auto which :
         {BlockOperator::Scores, BlockOperator::Softmax, BlockOperator::ScoreDropout, BlockOperator::Context}) {
      operators.add(which);
    }
  }
  // Without dropout, softmax and the product after it are neighbours.
  if (workload.training.dropout > 0) return operators;
  operators.remove(BlockOperator::ScoreDropout);
  if (operators.has(BlockOperator::Softmax) && operators.has(BlockOperator::Context)) {
    operators.add(BlockOperator::ScoreDropout);
  }
  return operators;
}

}  // namespace

BlockOperators recomputed_operators(const Workload& workload, std::size_t layer)
{
  if (is_recomputed(workload, layer) || !operators_of(workload, layer).any()) return {};
  const auto listed = [&](const DecoderLayer& of_decoder) {
    return workload.recompute_operators.empty() ? BlockOperators() : workload.recompute_operators.at(of_decoder.block);
  };
  const auto uniform = [&](const auto& sizes) {
    return of_uniform_block(workload, sizes.attention, listed(decoder_layer(layer, sizes.layers, sizes.unit)));
  };
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) return uniform(*gpt);
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) return uniform(*llama);
  if (workload.recompute_operators.empty()) return {};
  return listed(decoder_layer(layer, std::get<DecoderSizes>(workload.model)));
}

bool is_recomputed(const Workload& workload, std::size_t layer)
{
  return std::binary_search(workload.recompute.begin(), workload.recompute.end(), layer);
}

}  // namespace isobar::compute

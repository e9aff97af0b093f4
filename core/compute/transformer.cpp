#include "core/compute/transformer.hpp"

#include "core/compute/layer_time.hpp"
#include "core/errors.hpp"
#include "core/model/model_sizes.hpp"

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
constexpr double embedding_share = 0.3;
constexpr double small_share = 0.2;

double number(std::uint64_t count)
{
  return static_cast<double>(count);
}

/// Sizes that gpt and llama share.
struct Decoder {
  std::uint64_t layers;
  double hidden;
  double heads;
  double kv_width;
  double intermediate;
  std::uint64_t vocabulary;
  double positions;
  Attention attention;
  Unit unit;
  bool tied;
  bool is_llama;
};

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

  void attention(Attention how, double heads, double kv_width, bool is_causal, bool has_bias)
  {
    const double hidden = layer_.hidden;
    layer_.linears.push_back({tokens_, hidden, hidden + 2 * kv_width, false, has_bias});
    layer_.linears.push_back({tokens_, hidden, hidden, true, has_bias});
    layer_.attention = how;
    layer_.scores = samples_ * heads * sequence_ * sequence_;
    layer_.width = hidden / heads;
    layer_.kept_heads = 2 * hidden + 2 * kv_width;
    layer_.is_causal = is_causal;
    layer_.norms += 1;
    layer_.residuals += 1;
    layer_.host_share += attention_share;
  }
  void up(double intermediate, bool is_gated, bool has_bias)
  {
    layer_.linears.push_back({tokens_, layer_.hidden, (is_gated ? 2 : 1) * intermediate, false, has_bias});
    layer_.inner = intermediate;
    layer_.is_gated = is_gated;
  }
  void down(double intermediate, bool has_bias)
  {
    layer_.linears.push_back({tokens_, intermediate, layer_.hidden, true, has_bias});
    layer_.norms += 1;
    layer_.residuals += 1;
  }
  void embedding(double words, double others)
  {
    layer_.looked_up = (words + others) * layer_.hidden;
    layer_.divided_table = words * layer_.hidden;
    layer_.host_share += embedding_share;
  }
  void of_samples(double outputs)
  {
    layer_.linears.push_back({samples_, layer_.hidden, outputs, false, true});
    layer_.host_share += small_share;
  }
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

TransformerLayer decoder(const Workload& workload, std::size_t layer, const Decoder& sizes, double vocabulary)
{
  using Kind = DecoderLayer::Kind;
  Builder builder(workload, sizes.hidden);
  const bool has_bias = !sizes.is_llama;
  const auto kind = decoder_layer(layer, sizes.layers, sizes.unit).kind;
  if (kind == Kind::Embedding) builder.embedding(vocabulary, sizes.positions);
  if (kind == Kind::Block || kind == Kind::Attention) {
    builder.attention(sizes.attention, sizes.heads, sizes.kv_width, true, has_bias);
    if (sizes.is_llama) builder.layer().rotated = sizes.hidden + sizes.kv_width;
  }
  if (kind == Kind::Block || kind == Kind::FeedForward) {
    builder.up(sizes.intermediate, sizes.is_llama, has_bias);
    builder.down(sizes.intermediate, has_bias);
    builder.layer().host_share += feed_forward_share;
  }
  if (kind == Kind::Head) {
    auto& head = builder.layer();
    head.linears.push_back({head.tokens, sizes.hidden, vocabulary, false, false});
    head.norms = 1;
    head.vocabulary = vocabulary;
    head.has_tied_head = sizes.tied;
    head.host_share = 1;
  }
  return builder.layer();
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
    builder.attention(sizes.attention, number(sizes.heads), number(sizes.hidden), false, true);
  } else if ((layer - 1) % layers_of_encoder == 1) {
    builder.up(number(sizes.intermediate), false, true);
    builder.layer().host_share += feed_forward_share / 2;
  } else {
    builder.down(number(sizes.intermediate), true);
    builder.layer().host_share += feed_forward_share / 2;
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
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) {
    const double hidden = number(gpt->hidden);
    const Decoder sizes = {gpt->layers,
                           hidden,
                           number(gpt->heads),
                           hidden,
                           number(gpt->intermediate),
                           gpt->vocabulary,
                           number(gpt->positions),
                           gpt->attention,
                           gpt->unit,
                           gpt->tied,
                           false};
    return decoder(workload, layer, sizes, padded(gpt->vocabulary, shards, framework));
  }
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) {
    const Decoder sizes = {llama->layers,
                           number(llama->hidden),
                           number(llama->heads),
                           number(llama->hidden / llama->heads * llama->kv_heads),
                           number(llama->intermediate),
                           llama->vocabulary,
                           0,
                           llama->attention,
                           llama->unit,
                           false,
                           true};
    return decoder(workload, layer, sizes, padded(llama->vocabulary, shards, framework));
  }
  throw InputError("workload " + workload.name,
                   "has no operators that are known; compute: operators takes models bert, "
                   "gpt and llama; use compute: rate");
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
  if (const auto* bert = std::get_if<BertSizes>(&workload.model)) {
    if (layer == 0 || layer > layers_of_encoder * bert->encoders) return {layer, layer};
    const std::size_t first = layer - (layer - 1) % layers_of_encoder;
    return {first, first + layers_of_encoder - 1};
  }
  return {layer, layer};
}

namespace {

/// Calls visit(sizes, DecoderLayer) for a layer of a gpt or llama.
template <typename Visit>
void visit_decoder_layer(const Workload& workload, std::size_t layer, Visit visit)
{
  const auto of_decoder = [&](const auto& sizes) { visit(sizes, decoder_layer(layer, sizes.layers, sizes.unit)); };
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) of_decoder(*gpt);
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) of_decoder(*llama);
}

}  // namespace

BlockOperators operators_of(const Workload& workload, std::size_t layer)
{
  using Kind = DecoderLayer::Kind;
  BlockOperators operators;
  visit_decoder_layer(workload, layer, [&](const auto&, const DecoderLayer& of_decoder) {
    if (of_decoder.kind == Kind::Block) operators = BlockOperators::range(0, operators_of_block);
    if (of_decoder.kind == Kind::Attention) operators = BlockOperators::range(0, operators_of_attention);
    if (of_decoder.kind == Kind::FeedForward) {
      operators = BlockOperators::range(operators_of_attention, operators_of_block);
    }
  });
  return operators;
}

BlockOperators recomputed_operators(const Workload& workload, std::size_t layer)
{
  BlockOperators operators;
  if (is_recomputed(workload, layer)) return operators;
  visit_decoder_layer(workload, layer, [&](const auto& sizes, const DecoderLayer& of_decoder) {
    if (!operators_of(workload, layer).any()) return;
    if (sizes.attention == Attention::Recomputed) {
      for (const auto which :
           {BlockOperator::Scores, BlockOperator::Softmax, BlockOperator::ScoreDropout, BlockOperator::Context}) {
        operators.add(which);
      }
    }
    if (!workload.recompute_operators.empty()) operators |= workload.recompute_operators.at(of_decoder.block);
    // Without dropout, softmax and the product after it are neighbours.
    if (workload.training.dropout > 0) return;
    operators.remove(BlockOperator::ScoreDropout);
    if (operators.has(BlockOperator::Softmax) && operators.has(BlockOperator::Context)) {
      operators.add(BlockOperator::ScoreDropout);
    }
  });
  return operators;
}

bool is_recomputed(const Workload& workload, std::size_t layer)
{
  return std::binary_search(workload.recompute.begin(), workload.recompute.end(), layer);
}

}  // namespace isobar::compute

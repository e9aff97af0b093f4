#include "core/model/append_layer.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/decoder/part_memory.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace isobar {

namespace decoder {
namespace {

/// How the head divides its vocabulary. Of each token, the loss needs to know the logarithm of the sum of a part's
/// exponentials and the logit of its label, in float32.
Split split_of_head(const DecoderSizes& sizes, double predictions, double tokens)
{
  constexpr double bytes_of_a_value = 4;
  const double predicted = predictions * tokens;
  return {.name = "vocabulary",
          .units = sizes.vocabulary,
          .parameters = sizes.vocabulary * sizes.hidden,
          .activations = Bytes(bytes_of_a_value * predicted * static_cast<double>(sizes.vocabulary)),
          .gathered = Bytes(2 * bytes_of_a_value * predicted),
          .products = {{sizes.hidden, sizes.vocabulary}},
          .norm_sums = sizes.norm == Norm::Rms ? 1U : 2U};
}

/// Both parts of a block as one layer.
LayerSizes joined(const LayerSizes& mixer, const LayerSizes& feed_forward)
{
  LayerSizes both = feed_forward;
  both.parameters += mixer.parameters;
  both.multiply_adds += mixer.multiply_adds;
  both.score_multiply_adds += mixer.score_multiply_adds;
  both.recomputed_multiply_adds += mixer.recomputed_multiply_adds;
  both.activations += mixer.activations;
  // When the backward pass comes to the mixer, the gradient of its output is the only one left of the other part.
  both.passing = std::max(both.passing, mixer.passing + mixer.output - both.kept);
  both.kept += mixer.kept;
  return both;
}

class Builder {
 public:
  Builder(const DecoderSizes& sizes, Workload& workload)
      : sizes_(sizes),
        workload_(workload),
        z_(size_of(workload.dtype)),
        tokens_(static_cast<double>(workload.micro_batch) * static_cast<double>(workload.sequence)),
        states_(tokens_ * static_cast<double>(sizes.hidden))
  {
  }

  void build()
  {
    workload_.input = Bytes(token * tokens_);
    const LayerSizes embedding = embedding_sizes();
    append_layer(workload_, embedding);
    std::optional<std::size_t> same;  // an earlier block with the same parts, whose sizes are those of the next one
    std::pair<std::optional<LayerSizes>, std::optional<LayerSizes>> parts;
    for (std::size_t i = 0; i < sizes_.blocks.size(); ++i) {
      if (!same || sizes_.blocks[*same] != sizes_.blocks[i]) parts = parts_of(sizes_.blocks[i]);
      same = i;
      append_block(fmt::format("block{}", i), parts.first, parts.second);
    }
    for (std::size_t i = 0; i < sizes_.mtp_blocks.size(); ++i) append_mtp_block(i);
    Layer& head = append_layer(workload_, head_sizes());
    if (sizes_.tied) use_embedding(head);
    if (sizes_.streams > 1) keep_whole();
    count_in_each_pass(workload_, embedding);
  }

 private:
  LayerSizes embedding_sizes() const
  {
    const std::uint64_t hidden = sizes_.hidden;
    LayerSizes embedding = {
        .name = "embedding",
        .parameters = (sizes_.vocabulary + sizes_.positions) * hidden,
        .multiply_adds = 0,
        .activations = workload_.input.value,
        .output = z_ * states_,
        .split = Split{.name = "vocabulary", .units = sizes_.vocabulary, .parameters = sizes_.vocabulary * hidden}};
    if (sizes_.model == DecoderModel::Gpt) embedding.activations += states_;  // the mask of its dropout
    if (sizes_.has_embedding_norm) {
      embedding.parameters += parameters_of(sizes_.norm) * hidden;
      embedding.activations += z_ * states_;
    }
    const KernelNeeds needs = needs_of_embedding(sizes_, workload_);
    embedding.kept = needs.kept;
    embedding.passing = needs.passing;
    return embedding;
  }

  std::pair<std::optional<LayerSizes>, std::optional<LayerSizes>> parts_of(const DecoderBlock& block) const
  {
    std::pair<std::optional<LayerSizes>, std::optional<LayerSizes>> parts;
    if (block.mixer != Mixer::None) parts.first = mixer_of(sizes_, block, workload_);
    if (block.feed_forward != FeedForward::None) parts.second = feed_forward_of(sizes_, block, workload_);
    return parts;
  }

  void append_block(const std::string& name, const std::optional<LayerSizes>& mixer,
                    const std::optional<LayerSizes>& feed_forward)
  {
    if (sizes_.unit == Unit::Block) {
      LayerSizes block = mixer && feed_forward ? joined(*mixer, *feed_forward) : mixer ? *mixer : *feed_forward;
      block.name = name;
      // A part of a block is divided, and exchanges what its experts need, where it is a layer.
      block.split.reset();
      block.experts.reset();
      append_layer(workload_, std::move(block));
      return;
    }
    for (const auto* part : {&mixer, &feed_forward}) {
      if (!*part) continue;
      LayerSizes layer = **part;
      layer.name = fmt::format("{}.{}", name, layer.name);
      append_layer(workload_, std::move(layer));
    }
  }

  /// A block that predicts one token further ahead than the one before it: of that one's states and the next token's
  /// embedding, both normalized, a product makes its input. The embedding's matrix is that of the first layer. What it
  /// gives has its own last norm. The states of all blocks before it pass to the head, too. Of several streams, each
  /// has a product of the same matrix, and one of the embedding is added to all.
  void append_mtp_block(std::size_t index)
  {
    auto [mixer, feed_forward] = parts_of(sizes_.mtp_blocks[index]);
    const std::uint64_t hidden = sizes_.hidden;
    const auto streams = static_cast<double>(sizes_.streams);
    const double passed = z_ * static_cast<double>(index + 1) * streams * states_;
    LayerSizes& first = mixer ? *mixer : *feed_forward;
    first.parameters += 2 * hidden * hidden + 3 * parameters_of(sizes_.norm) * hidden;
    if (sizes_.streams > 1) first.parameters += connection_of_head(sizes_).parameters();  // whose work the head does
    first.multiply_adds += (1 + streams) * states_ * static_cast<double>(hidden);
    first.activations += z_ * kept_states_of_mtp(sizes_) * states_;
    for (auto* part : {&mixer, &feed_forward}) {
      if (*part) (*part)->output += passed;
    }
    const std::size_t begin = workload_.layers.size();
    append_block(fmt::format("mtp{}", index), mixer, feed_forward);
    use_embedding(workload_.layers[begin]);
  }

  /// Lets a layer use the matrix of the embedding, too.
  void use_embedding(Layer& layer) const
  {
    layer.tied_to = 0;
    layer.tied_parameters = sizes_.vocabulary * sizes_.hidden;
  }

  LayerSizes head_sizes() const
  {
    const std::uint64_t hidden = sizes_.hidden;
    const double predictions = 1 + static_cast<double>(sizes_.mtp_blocks.size());
    const double logits = predictions * tokens_ * static_cast<double>(sizes_.vocabulary);
    LayerSizes head = {.name = "head",
                       .parameters = parameters_of(sizes_.norm) * hidden + sizes_.vocabulary * hidden,
                       .multiply_adds = logits * static_cast<double>(hidden),
                       .activations = predictions * 2 * z_ * states_ + 4 * logits,
                       .output = z_ * logits,
                       .split = split_of_head(sizes_, predictions, tokens_)};
    const KernelNeeds needs = needs_of_head(sizes_, workload_, predictions);
    head.kept = needs.kept;
    head.passing = needs.passing;
    if (sizes_.tied) {
      head.parameters = parameters_of(sizes_.norm) * hidden;
      head.split->parameters = 0;
      head.score_multiply_adds = head.multiply_adds;  // of no parameters of its own
    }
    if (sizes_.streams > 1) add_collapse(head, predictions);
    return head;
  }

  /// Shards would exchange one stream, and layers exchange all of them (why_whole).
  void keep_whole()
  {
    for (auto& layer : workload_.layers) layer.split.reset();
  }

  /// The head adds up the streams of each prediction.
  void add_collapse(LayerSizes& head, double predictions) const
  {
    const HyperConnection connection = connection_of_head(sizes_);
    LayerSizes collapse;
    add_connection(collapse, connection, workload_);
    head.parameters += collapse.parameters;
    head.multiply_adds += predictions * collapse.multiply_adds;
    head.activations += predictions * collapse.activations;
    head.kept += predictions * collapse.kept;
    head.passing = std::max(head.passing, collapse.passing);
  }

  const DecoderSizes& sizes_;
  Workload& workload_;
  double z_;
  double tokens_;
  double states_;
};

}  // namespace
}  // namespace decoder

DecoderSizes decoder_parts_of(const GptSizes& sizes)
{
  DecoderSizes decoder;
  decoder.blocks = {{.rotates = false}};
  decoder.model = DecoderModel::Gpt;
  decoder.hidden = sizes.hidden;
  decoder.vocabulary = sizes.vocabulary;
  decoder.positions = sizes.positions;
  decoder.tied = sizes.tied;
  decoder.heads = decoder.kv_heads = sizes.heads;
  decoder.head_width = sizes.hidden / sizes.heads;
  decoder.intermediate = sizes.intermediate;
  decoder.activation = Activation::GeluTanh;
  decoder.is_gated = false;
  decoder.norm = Norm::Layer;
  decoder.biases.qkv = decoder.biases.output = decoder.biases.mlp = true;
  decoder.attention = sizes.attention;
  decoder.unit = sizes.unit;
  return decoder;
}

DecoderSizes decoder_parts_of(const LlamaSizes& sizes)
{
  DecoderSizes decoder;
  decoder.blocks = {{}};
  decoder.model = DecoderModel::Llama;
  decoder.hidden = sizes.hidden;
  decoder.vocabulary = sizes.vocabulary;
  decoder.heads = sizes.heads;
  decoder.kv_heads = sizes.kv_heads;
  decoder.head_width = sizes.hidden / sizes.heads;
  decoder.intermediate = sizes.intermediate;
  decoder.rope_theta = sizes.rope_theta;
  decoder.rope_scaling = sizes.rope_scaling;
  decoder.norm_epsilon = sizes.norm_epsilon;
  decoder.attention = sizes.attention;
  decoder.unit = sizes.unit;
  return decoder;
}

void build_decoder(const DecoderSizes& sizes, Workload& workload)
{
  decoder::Builder(sizes, workload).build();
}

void build_gpt(const GptSizes& sizes, Workload& workload)
{
  DecoderSizes decoder = decoder_parts_of(sizes);
  decoder.blocks.resize(sizes.layers, decoder.blocks.front());
  build_decoder(decoder, workload);
}

void build_llama(const LlamaSizes& sizes, Workload& workload)
{
  DecoderSizes decoder = decoder_parts_of(sizes);
  decoder.blocks.resize(sizes.layers, decoder.blocks.front());
  build_decoder(decoder, workload);
}

}  // namespace isobar

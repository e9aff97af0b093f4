#include "core/model/decoder/decoder_sizes.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"

#include <algorithm>

namespace isobar {

namespace {

/// "flash" is another word for fused.
constexpr NameTable<Attention, 4> attentions = {{{Attention::Unfused, "unfused"},
                                                 {Attention::Recomputed, "recomputed"},
                                                 {Attention::Fused, "fused"},
                                                 {Attention::Fused, "flash"}}};

constexpr NameTable<Unit, 2> units = {{{Unit::Block, "block"}, {Unit::Operator, "operator"}}};

constexpr NameTable<Mixer, 9> mixers = {{{Mixer::None, "none"},
                                         {Mixer::Full, "full"},
                                         {Mixer::Window, "window"},
                                         {Mixer::Chunk, "chunk"},
                                         {Mixer::Latent, "latent"},
                                         {Mixer::CompressedSparse, "compressed_sparse"},
                                         {Mixer::HeavilyCompressed, "heavily_compressed"},
                                         {Mixer::DeltaNet, "delta_net"},
                                         {Mixer::Mamba2, "mamba2"}}};

constexpr NameTable<FeedForward, 3> feed_forwards = {
    {{FeedForward::None, "none"}, {FeedForward::Dense, "dense"}, {FeedForward::Experts, "experts"}}};

constexpr NameTable<Norm, 4> norms = {{{Norm::Rms, "rms"},
                                       {Norm::Layer, "layer"},
                                       {Norm::LayerWithoutBias, "layer_without_bias"},
                                       {Norm::LayerWithoutWeights, "layer_without_weights"}}};

constexpr NameTable<NormPlace, 4> norm_places = {{{NormPlace::Before, "before"},
                                                  {NormPlace::After, "after"},
                                                  {NormPlace::Both, "both"},
                                                  {NormPlace::Shared, "shared"}}};

constexpr NameTable<HeadNorm, 6> head_norms = {{{HeadNorm::None, "none"},
                                                {HeadNorm::Head, "head"},
                                                {HeadNorm::EachHead, "each_head"},
                                                {HeadNorm::AllHeads, "all_heads"},
                                                {HeadNorm::Unweighted, "unweighted"},
                                                {HeadNorm::WeightedKeys, "weighted_keys"}}};

constexpr NameTable<Activation, 5> activations = {{{Activation::Silu, "silu"},
                                                   {Activation::Gelu, "gelu"},
                                                   {Activation::GeluTanh, "gelu_tanh"},
                                                   {Activation::Relu, "relu"},
                                                   {Activation::SquaredRelu, "relu2"}}};

constexpr NameTable<RouterScores, 2> all_router_scores = {
    {{RouterScores::Softmax, "softmax"}, {RouterScores::Sigmoid, "sigmoid"}}};

constexpr NameTable<RopeScaling::Type, 3> rope_scalings = {{{RopeScaling::Type::None, "default"},
                                                            {RopeScaling::Type::Linear, "linear"},
                                                            {RopeScaling::Type::Llama3, "llama3"}}};

std::size_t count_of_parts(const DecoderBlock& block)
{
  return (block.mixer != Mixer::None ? 1U : 0U) + (block.feed_forward != FeedForward::None ? 1U : 0U);
}

/// The pairs of a token and one of the last `reach` tokens up to it.
double pairs_within(std::uint64_t reach, std::uint64_t sequence)
{
  const auto most = static_cast<double>(std::min(reach, sequence));
  return static_cast<double>(sequence) * most - most * (most - 1) / 2;
}

/// The pairs of a token and one of the last `most` entries of `rate` tokens each that end with it or before it.
double pairs_of_entries(std::uint64_t rate, std::uint64_t most, std::uint64_t sequence)
{
  // Tokens up to number q * rate - 1 see fewer than q entries, and those that follow see q.
  const std::uint64_t entries = std::min(most, sequence / rate);
  const auto q = static_cast<double>(entries);
  const auto tokens = static_cast<double>(sequence + 1 - entries * rate);
  return static_cast<double>(rate) * q * (q - 1) / 2 + q * tokens;
}

}  // namespace

std::string_view name_of(Attention attention)
{
  return name_in(attentions, attention);
}

std::optional<Attention> attention_from_name(std::string_view name)
{
  return value_in(attentions, name);
}

std::vector<std::string> attention_names()
{
  return names_in(attentions);
}

std::string_view name_of(Unit unit)
{
  return name_in(units, unit);
}

std::optional<Unit> unit_from_name(std::string_view name)
{
  return value_in(units, name);
}

std::vector<std::string> unit_names()
{
  return names_in(units);
}

std::string_view name_of(Mixer mixer)
{
  return name_in(mixers, mixer);
}

std::optional<Mixer> mixer_from_name(std::string_view name)
{
  return value_in(mixers, name);
}

std::vector<std::string> mixer_names()
{
  return names_in(mixers);
}

std::string_view name_of(FeedForward network)
{
  return name_in(feed_forwards, network);
}

std::optional<FeedForward> feed_forward_from_name(std::string_view name)
{
  return value_in(feed_forwards, name);
}

std::vector<std::string> feed_forward_names()
{
  return names_in(feed_forwards);
}

std::string_view name_of(Norm norm)
{
  return name_in(norms, norm);
}

std::optional<Norm> norm_from_name(std::string_view name)
{
  return value_in(norms, name);
}

std::vector<std::string> norm_names()
{
  return names_in(norms);
}

std::uint64_t parameters_of(Norm norm)
{
  switch (norm) {
    case Norm::Layer:
      return 2;
    case Norm::LayerWithoutWeights:
      return 0;
    default:
      return 1;
  }
}

std::string_view name_of(NormPlace place)
{
  return name_in(norm_places, place);
}

std::optional<NormPlace> norm_place_from_name(std::string_view name)
{
  return value_in(norm_places, name);
}

std::vector<std::string> norm_place_names()
{
  return names_in(norm_places);
}

std::string_view name_of(HeadNorm norm)
{
  return name_in(head_norms, norm);
}

std::optional<HeadNorm> head_norm_from_name(std::string_view name)
{
  return value_in(head_norms, name);
}

std::vector<std::string> head_norm_names()
{
  return names_in(head_norms);
}

std::string_view name_of(Activation activation)
{
  return name_in(activations, activation);
}

std::optional<Activation> activation_from_name(std::string_view name)
{
  return value_in(activations, name);
}

std::vector<std::string> activation_names()
{
  return names_in(activations);
}

std::string_view name_of(RouterScores scores)
{
  return name_in(all_router_scores, scores);
}

std::optional<RouterScores> router_scores_from_name(std::string_view name)
{
  return value_in(all_router_scores, name);
}

std::vector<std::string> router_scores_names()
{
  return names_in(all_router_scores);
}

std::string_view name_of(RopeScaling::Type type)
{
  return name_in(rope_scalings, type);
}

std::optional<RopeScaling::Type> rope_scaling_from_name(std::string_view name)
{
  return value_in(rope_scalings, name);
}

std::vector<std::string> rope_scaling_names()
{
  return names_in(rope_scalings);
}

DecoderLayer decoder_layer(std::size_t layer, std::uint64_t blocks, Unit unit)
{
  using Kind = DecoderLayer::Kind;
  const std::uint64_t layers_of_block = unit == Unit::Block ? 1 : 2;
  if (layer == 0) return {Kind::Embedding, 0};
  if (layer > blocks * layers_of_block) return {Kind::Head, 0};
  const std::uint64_t place = layer - 1;
  if (unit == Unit::Block) return {Kind::Block, place};
  return {place % layers_of_block == 0 ? Kind::Attention : Kind::FeedForward, place / layers_of_block};
}

DecoderLayer decoder_layer(std::size_t layer, const DecoderSizes& sizes)
{
  using Kind = DecoderLayer::Kind;
  const std::uint64_t blocks = sizes.blocks.size() + sizes.mtp_blocks.size();
  if (layer == 0 || sizes.unit == Unit::Block) return decoder_layer(layer, blocks, sizes.unit);
  std::size_t place = layer - 1;
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const DecoderBlock& parts = decoder_block(sizes, block);
    if (place >= count_of_parts(parts)) {
      place -= count_of_parts(parts);
      continue;
    }
    return {place == 0 && parts.mixer != Mixer::None ? Kind::Attention : Kind::FeedForward, block};
  }
  return {Kind::Head, 0};
}

const DecoderBlock& decoder_block(const DecoderSizes& sizes, std::uint64_t block)
{
  if (block < sizes.blocks.size()) return sizes.blocks[block];
  return sizes.mtp_blocks.at(block - sizes.blocks.size());
}

std::size_t layers_of(const DecoderSizes& sizes)
{
  std::size_t layers = 2;
  for (const auto* blocks : {&sizes.blocks, &sizes.mtp_blocks}) {
    for (const auto& block : *blocks) layers += sizes.unit == Unit::Block ? 1 : count_of_parts(block);
  }
  return layers;
}

std::uint64_t compression_of(const DecoderSizes& sizes, Mixer mixer)
{
  switch (mixer) {
    case Mixer::CompressedSparse:
      return sizes.compression.sparse;
    case Mixer::HeavilyCompressed:
      return sizes.compression.heavy;
    default:
      return 0;
  }
}

double seen_pairs(const DecoderSizes& sizes, Mixer mixer, std::uint64_t sequence)
{
  switch (mixer) {
    case Mixer::Full:
      if (sizes.model != DecoderModel::Decoder) return static_cast<double>(sequence) * static_cast<double>(sequence);
      return pairs_within(sequence, sequence);
    case Mixer::Window:
      return pairs_within(sizes.window, sequence);
    case Mixer::Chunk: {
      const std::uint64_t whole = sequence / sizes.chunk;
      const std::uint64_t rest = sequence % sizes.chunk;
      return static_cast<double>(whole) * pairs_within(sizes.chunk, sizes.chunk) + pairs_within(rest, rest);
    }
    case Mixer::Latent:
      return pairs_within(sizes.indexer.heads > 0 ? sizes.indexer.kept : sequence, sequence);
    case Mixer::CompressedSparse:
      return pairs_within(sizes.window, sequence) +
             pairs_of_entries(sizes.compression.sparse, sizes.indexer.kept, sequence);
    case Mixer::HeavilyCompressed:
      return pairs_within(sizes.window, sequence) + pairs_of_entries(sizes.compression.heavy, sequence, sequence);
    default:
      return 0;
  }
}

double scored_pairs(const DecoderSizes& sizes, Mixer mixer, std::uint64_t sequence)
{
  if (mixer == Mixer::CompressedSparse) return pairs_of_entries(sizes.compression.sparse, sequence, sequence);
  return mixer == Mixer::Latent && sizes.indexer.heads > 0 ? pairs_within(sequence, sequence) : 0;
}

std::uint64_t keys_of_sample(const DecoderSizes& sizes, Mixer mixer, std::uint64_t sequence)
{
  const std::uint64_t rate = compression_of(sizes, mixer);
  return sequence + (rate > 0 ? sequence / rate : 0);
}

}  // namespace isobar

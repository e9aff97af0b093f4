#include "core/model/sharding.hpp"

#include "core/model/workload.hpp"
#include "core/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace isobar {

namespace {

constexpr NameTable<Sharding, 4> shardings = {{{Sharding::None, "none"},
                                               {Sharding::Optimizer, "optimizer"},
                                               {Sharding::Gradients, "gradients"},
                                               {Sharding::Parameters, "parameters"}}};

constexpr NameTable<ContextExchange, 3> exchanges = {{{ContextExchange::Ring, "ring"},
                                                      {ContextExchange::AllGather, "all-gather"},
                                                      {ContextExchange::AllToAll, "all-to-all"}}};

/// The sizes of a model's attention that count here.
struct AttentionSizes {
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  Unit unit = Unit::Block;
};

bool is_latent(const DecoderSizes& sizes)
{
  return std::any_of(sizes.blocks.begin(), sizes.blocks.end(),
                     [](const DecoderBlock& block) { return block.mixer == Mixer::Latent; });
}

std::optional<AttentionSizes> attention_sizes(const Workload& workload)
{
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) {
    return AttentionSizes{gpt->heads, gpt->heads, gpt->unit};
  }
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) {
    return AttentionSizes{llama->heads, llama->kv_heads, llama->unit};
  }
  if (const auto* sizes = std::get_if<DecoderSizes>(&workload.model)) {
    return AttentionSizes{sizes->heads, is_latent(*sizes) ? sizes->heads : sizes->kv_heads, sizes->unit};
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Sharding sharding)
{
  return name_in(shardings, sharding);
}
std::optional<Sharding> sharding_from_name(std::string_view name)
{
  return value_in(shardings, name);
}
std::vector<std::string> sharding_names()
{
  return names_in(shardings);
}

std::string_view name_of(ContextExchange exchange)
{
  return name_in(exchanges, exchange);
}
std::optional<ContextExchange> context_exchange_from_name(std::string_view name)
{
  return value_in(exchanges, name);
}
std::vector<std::string> context_exchange_names()
{
  return names_in(exchanges);
}

std::string text_of(const ContextParallelism& context)
{
  if (!context.divides()) return "whole sequences";
  return fmt::format("{} parts ({})", context.degree, name_of(context.exchange));
}

namespace {

bool is_attention(const DecoderLayer& layer)
{
  return layer.kind == DecoderLayer::Kind::Attention;
}

/// Of an attention of a decoder. Latent attention exchanges its expanded keys and values.
std::optional<AttentionWidths> widths_of(const DecoderSizes& sizes, Mixer mixer)
{
  if (mixer == Mixer::DeltaNet || mixer == Mixer::Mamba2) return std::nullopt;
  const auto heads = static_cast<double>(sizes.heads);
  if (mixer == Mixer::Latent) {
    const auto& latent = sizes.latent;
    const double mean = static_cast<double>(latent.nope + latent.rope + latent.value) / 2;
    return AttentionWidths{heads * mean, heads * mean};
  }
  const auto width = static_cast<double>(sizes.head_width);
  return AttentionWidths{heads * width, static_cast<double>(sizes.kv_heads) * width};
}

}  // namespace

std::optional<AttentionWidths> attention_widths(const Workload& workload, std::size_t layer)
{
  const auto uniform = [&](const auto& sizes, std::uint64_t kv_heads) -> std::optional<AttentionWidths> {
    if (!is_attention(decoder_layer(layer, sizes.layers, sizes.unit))) return std::nullopt;
    const std::uint64_t keys = sizes.hidden / sizes.heads * kv_heads;  // heads divide the width
    return AttentionWidths{static_cast<double>(sizes.hidden), static_cast<double>(keys)};
  };
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) return uniform(*gpt, gpt->heads);
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) return uniform(*llama, llama->kv_heads);
  const auto* sizes = std::get_if<DecoderSizes>(&workload.model);
  if (sizes == nullptr) return std::nullopt;
  const DecoderLayer which = decoder_layer(layer, *sizes);
  if (!is_attention(which)) return std::nullopt;
  return widths_of(*sizes, decoder_block(*sizes, which.block).mixer);
}

namespace {

/// What of a decoder cannot be computed on parts of sequences by exchanges of keys and values; none.
std::optional<std::string> why_not_in_parts(const DecoderSizes& sizes)
{
  for (const auto* blocks : {&sizes.blocks, &sizes.mtp_blocks}) {
    for (const auto& block : *blocks) {
      if (block.mixer == Mixer::DeltaNet || block.mixer == Mixer::Mamba2) {
        return fmt::format("layer type {} passes a state along the sequence", name_of(block.mixer));
      }
    }
  }
  if (sizes.indexer.heads > 0) return "an indexer (index_n_heads) scores all tokens";
  if (!sizes.mtp_blocks.empty()) return "multi-token prediction (mtp_layers) reads the next tokens";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_divided(const Workload& workload, const ContextParallelism& context,
                                           std::size_t shards)
{
  if (!context.divides()) return std::nullopt;
  const auto sizes = attention_sizes(workload);
  if (!sizes || sizes->unit != Unit::Operator) {
    return fmt::format("the sequences of {} cannot be divided; a gpt or llama with unit: operator can", workload.name);
  }
  if (const auto* decoder = std::get_if<DecoderSizes>(&workload.model)) {
    if (const auto reason = why_not_in_parts(*decoder)) {
      return fmt::format("the sequences of {} cannot be divided: {}", workload.name, *reason);
    }
  }
  if (workload.compute != ComputeModel::Operators) {
    return fmt::format("compute: {} does not know attention; write compute: operators and a framework",
                       name_of(workload.compute));
  }
  const auto is_tied = [](const Layer& layer) { return layer.tied_to.has_value(); };
  if (std::any_of(workload.layers.begin(), workload.layers.end(), is_tied)) {
    return fmt::format(
        "the head of {} uses the embedding's matrix, and each layer is a part of its own where sequences are "
        "divided; write tied: apart",
        workload.name);
  }
  const std::uint64_t chunks = 2 * context.degree;
  if (workload.sequence % chunks != 0) {
    return fmt::format("sequences of {} tokens are not {} equal chunks, two for each of {} parts; use another degree",
                       workload.sequence, chunks, context.degree);
  }
  if (context.exchange != ContextExchange::AllToAll) return std::nullopt;
  const std::uint64_t takers = context.degree * shards;
  const auto not_whole = [&](std::uint64_t heads, const char* what) {
    return fmt::format(
        "all-to-all gives each of {} parts of {} shards whole {}, and there are {}; use ring or "
        "all-gather",
        context.degree, shards, what, heads);
  };
  if (sizes->heads % takers != 0) return not_whole(sizes->heads, "heads");
  if (sizes->kv_heads % takers != 0) return not_whole(sizes->kv_heads, "heads of keys and values");
  return std::nullopt;
}

Workload with_context(const Workload& workload, const ContextParallelism& context)
{
  Workload result = workload;
  result.context = context;
  return with_micro_batch(result, workload.micro_batch);
}

}  // namespace isobar

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
  std::uint64_t layers = 0;  // blocks
  std::uint64_t hidden = 0;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  Unit unit = Unit::Block;
};

std::optional<AttentionSizes> attention_sizes(const Workload& workload)
{
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) {
    return AttentionSizes{gpt->layers, gpt->hidden, gpt->heads, gpt->heads, gpt->unit};
  }
  if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) {
    return AttentionSizes{llama->layers, llama->hidden, llama->heads, llama->kv_heads, llama->unit};
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

std::optional<AttentionWidths> attention_widths(const Workload& workload, std::size_t layer)
{
  const auto sizes = attention_sizes(workload);
  if (!sizes) return std::nullopt;
  if (decoder_layer(layer, sizes->layers, sizes->unit).kind != DecoderLayer::Kind::Attention) return std::nullopt;
  const std::uint64_t keys = sizes->hidden / sizes->heads * sizes->kv_heads;  // heads divide the width
  return AttentionWidths{static_cast<double>(sizes->hidden), static_cast<double>(keys)};
}

std::optional<std::string> why_not_divided(const Workload& workload, const ContextParallelism& context,
                                           std::size_t shards)
{
  if (!context.divides()) return std::nullopt;
  const auto sizes = attention_sizes(workload);
  if (!sizes || sizes->unit != Unit::Operator) {
    return fmt::format("the sequences of {} cannot be divided; a gpt or llama with unit: operator can", workload.name);
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

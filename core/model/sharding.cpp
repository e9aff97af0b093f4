#include "core/model/sharding.hpp"

#include "core/base/pcg64.hpp"
#include "core/errors.hpp"
#include "core/model/workload.hpp"
#include "core/names.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
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
  const double keys = static_cast<double>(sizes.kv_heads) * width;
  return AttentionWidths{heads * width, sizes.has_shared_kv ? keys / 2 : keys};
}

}  // namespace

std::string text_of(const ExpertParallelism& experts)
{
  if (!experts.divides()) return "all together";
  return fmt::format("groups of {} replicas{}", experts.degree,
                     experts.are_whole ? " with whole experts on each shard" : "");
}

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
      if (compression_of(sizes, block.mixer) > 0) {
        return fmt::format("layer type {} sees entries of several tokens", name_of(block.mixer));
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
    return fmt::format("the sequences of {} cannot be divided; a gpt, llama or decoder with unit: operator can",
                       workload.name);
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
  const std::uint64_t chunks = 2 * context.degree;
  if (workload.sequence % chunks != 0) {
    return fmt::format("sequences of {} tokens are not {} equal chunks, two for each of {} parts; use another degree",
                       workload.sequence, chunks, context.degree);
  }
  if (context.exchange != ContextExchange::AllToAll) return std::nullopt;
  const std::uint64_t takers = context.degree * shards;
  const auto not_whole = [&](std::uint64_t heads, const char* what) {
    return fmt::format(
        "all-to-all gives each of {} parts of {} whole {}, and there are {}; use ring or "
        "all-gather",
        context.degree, counted(shards, "shard"), what, heads);
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

std::optional<std::string> why_not_divided(const Workload& workload, const ExpertParallelism& experts,
                                           std::size_t shards)
{
  if (!experts.divides()) return std::nullopt;
  const std::size_t parts = experts.parts(shards);
  if (workload.memory_model == MemoryModel::Sky) {
    return "memory_model sky does not know experts; write memory_model: training";
  }
  bool has_experts = false;
  for (const auto& layer : workload.layers) {
    if (!layer.experts) continue;
    has_experts = true;
    if (layer.experts->count % parts == 0) continue;
    return fmt::format("the {} experts of layer {} are not {} equal parts; use a degree that divides them",
                       layer.experts->count, shown(layer.name), parts);
  }
  if (!has_experts) {
    const auto* decoder = std::get_if<DecoderSizes>(&workload.model);
    const bool are_inside = decoder != nullptr && decoder->experts.count > 0 && decoder->unit == Unit::Block;
    return are_inside
               ? fmt::format("the experts of {} are parts of blocks; write unit: operator, or --set unit=operator",
                             workload.name)
               : fmt::format("no layer of {} has experts", workload.name);
  }
  const ExpertImbalance& imbalance = workload.expert_imbalance;
  if (imbalance.spread > 0 && experts.are_whole) {
    return "expert_spread: is drawn for groups whose shards have a part of every expert; leave out whole experts, or "
           "write expert_imbalance";
  }
  if (imbalance.most <= static_cast<double>(parts)) return std::nullopt;
  return fmt::format("expert_imbalance: {:g} times the mean are more than all tokens of {} parts; write at most {}",
                     imbalance.most, parts, parts);
}

namespace {

/// Adds the experts' activations of `more` times the tokens of a layer, of which a layer that recomputes keeps none but
/// what it reads.
void add_activations(Workload& workload, std::size_t index, double more)
{
  Layer& layer = workload.layers[index];
  const Bytes added = more * layer.experts->activations;
  layer.workspace += more * layer.experts->workspace;
  if (layer.split) layer.split->workspace += more * layer.experts->workspace;
  if (!std::binary_search(workload.recompute.begin(), workload.recompute.end(), index)) {
    layer.activations += added;
    if (layer.split) layer.split->activations += added;
    return;
  }
  Bytes read = layer.inputs.empty() ? workload.input : Bytes(0);
  for (const std::size_t input : layer.inputs) read += workload.layers[input].output;
  const Bytes all = layer.activations + added;
  layer.activations = std::min(read, all);
  layer.workspace += all - layer.activations;
  workload.workspace = std::max(workload.workspace, layer.workspace);
}

}  // namespace

double most_over_mean(const ExpertImbalance& imbalance, std::size_t layer, std::uint64_t experts, std::size_t parts)
{
  if (imbalance.spread <= 0) return imbalance.most;
  constexpr std::uint64_t between_layers = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
  Pcg64 stream(imbalance.seed + layer * between_layers);
  const double deviation = std::sqrt(std::log1p(imbalance.spread * imbalance.spread));  // of the logarithms
  std::vector<double> loads(parts);
  double all = 0;
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    const double radius = std::sqrt(-2 * std::log1p(-stream.uniform()));  // of a normal number (Box and Muller, 1958)
    const double load = std::exp(deviation * radius * std::cos(2 * std::numbers::pi * stream.uniform()));
    loads[expert * parts / experts] += load;
    all += load;
  }
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(parts) / all;
}

void divide_experts(Workload& workload)
{
  const std::uint64_t degree = workload.experts.degree;
  if (!workload.experts.divides()) return;
  for (std::size_t index = 0; index < workload.layers.size(); ++index) {
    Layer& layer = workload.layers[index];
    if (!layer.experts) continue;
    Experts& experts = *layer.experts;
    experts.imbalance = most_over_mean(workload.expert_imbalance, index, experts.count, degree);
    const double more = experts.imbalance - 1;
    const std::uint64_t elsewhere = experts.parameters - experts.parameters / degree;
    ensure(elsewhere <= layer.parameters, "experts have parameters of their layer");
    const auto all = static_cast<double>(layer.parameters);
    experts.parameters -= elsewhere;
    layer.parameters -= elsewhere;
    if (layer.update && all > 0) layer.update = static_cast<double>(layer.parameters) / all * *layer.update;
    if (layer.split) {
      ensure(elsewhere <= layer.split->parameters, "shards divide all experts");
      layer.split->parameters -= elsewhere;
    }
    const bool recomputes = std::binary_search(workload.recompute.begin(), workload.recompute.end(), index);
    layer.forward += more * experts.forward;
    layer.backward += more * (experts.backward + (recomputes ? experts.forward : Flops(0)));
    layer.backward_weight += more * experts.backward_weight;
    add_activations(workload, index, more);
    for (Flops* work : {&experts.forward, &experts.backward, &experts.backward_weight}) {
      *work = experts.imbalance * *work;
    }
    for (Bytes* size : {&experts.activations, &experts.workspace}) *size = experts.imbalance * *size;
  }
}

Workload with_experts(const Workload& workload, const ExpertParallelism& experts)
{
  ensure(!workload.experts.divides(), "experts are divided once");
  Workload result = workload;
  result.experts = experts;
  if (!std::holds_alternative<std::monostate>(workload.model)) return with_micro_batch(result, workload.micro_batch);
  ensure(workload.times.empty(), "measured layers are of undivided experts");
  divide_experts(result);
  return result;
}

}  // namespace isobar

#include "core/base/file_kind.hpp"
#include "core/base/files.hpp"
#include "core/model/decoder/decoder_file.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/model_limits.hpp"
#include "core/model/models.hpp"
#include "core/model/workload.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace isobar {

namespace {

std::uint64_t read_width(MappingReader& model, const std::string& key)
{
  return model.required_count(key, 1, widest);
}

double read_positive(MappingReader& model, const std::string& key, double default_value)
{
  const double value = model.optional_number(key).value_or(default_value);
  if (value == 0) model.add_fault(key, "is 0; write a positive number");
  return value;
}

/// Checks two keys against each other; called only if each key is right on its own.
void refuse_uneven_parts(MappingReader& model, const std::string& key, std::uint64_t parts, const std::string& of,
                         std::uint64_t whole)
{
  if (whole % parts != 0) {
    model.add_fault(key, fmt::format("{} does not divide {}, {}; write a divisor of it", parts, of, whole));
  }
}

void refuse_long_sequences(MappingReader& model, std::uint64_t sequence, std::uint64_t positions)
{
  if (sequence > positions) {
    model.add_fault("sequence", fmt::format("{} is more than the {} positions; write a shorter one, or more positions",
                                            sequence, positions));
  }
}

Attention read_attention(MappingReader& model, Attention default_value, double dropout)
{
  const auto name = model.optional_choice("attention", attention_names());
  const Attention attention = name ? *attention_from_name(*name) : default_value;
  if (attention == Attention::Fused && dropout > 0) {
    model.add_fault("attention", "fused kernels draw dropout that no seed repeats; write unfused, or dropout: 0");
  }
  return attention;
}

/// Reads the key recompute_operators of a model whose blocks have these operators.
std::vector<BlockOperators> read_recomputed_operators(MappingReader& model, const Workload& workload,
                                                      const std::vector<BlockOperators>& of_blocks)
{
  constexpr const char* key = "recompute_operators";
  if (!model.has(key)) return {};
  std::vector<BlockOperators> recomputed(of_blocks.size());
  for (const auto& text : model.required_sequence(key)) {
    try {
      add_block_operators(text.scalar, recomputed);
    } catch (const std::invalid_argument& fault) {
      model.add_fault(key, fault.what());
      return {};
    }
  }
  if (workload.compute != ComputeModel::Operators) {
    model.add_fault(key, "goes with compute: operators, whose times are of operators; leave it out, or write that");
    return {};
  }
  for (std::size_t block = 0; block < of_blocks.size(); ++block) {
    const BlockOperators lacking = recomputed[block] - of_blocks[block];
    if (!lacking.any()) continue;
    model.add_fault(key,
                    fmt::format("block {} has no {}; it has {}", block, fmt::join(names_of_operators(lacking), ", "),
                                fmt::join(names_of_operators(of_blocks[block]), ", ")));
    return {};
  }
  return recomputed;
}

/// Likewise of a gpt or llama of `blocks`.
std::vector<BlockOperators> read_uniform_recomputed_operators(MappingReader& model, const Workload& workload,
                                                              std::uint64_t blocks, Attention attention)
{
  constexpr const char* key = "recompute_operators";
  auto recomputed = read_recomputed_operators(model, workload, std::vector(blocks, BlockOperators::uniform()));
  BlockOperators core;  // all but Context are no operators of their own in fused attention
  for (const auto which : {BlockOperator::Scores, BlockOperator::Softmax, BlockOperator::ScoreDropout}) core.add(which);
  const auto has_core = [&](BlockOperators operators) { return (operators &= core).any(); };
  if (!recomputed.empty() && attention == Attention::Recomputed) {
    model.add_fault(key, "says more than attention: recomputed; leave one of them out");
  } else if (attention == Attention::Fused && std::ranges::any_of(recomputed, has_core)) {
    model.add_fault(key, "fused attention is one operator, context; write that, or attention: unfused");
  }
  return recomputed;
}

Unit read_unit(MappingReader& model, std::uint64_t layers)
{
  const auto name = model.optional_choice("unit", unit_names());
  const Unit unit = name ? *unit_from_name(*name) : Unit::Block;
  if (unit == Unit::Operator && layers > most_blocks / 2) {
    model.add_fault("layers", fmt::format("{} is not in the range 1 to {} of unit operator", layers, most_blocks / 2));
  }
  return unit;
}

/// What the key `tied` says: whether the head uses the embedding's matrix.
enum class Tie { No, Yes, Apart };

Tie read_tie(MappingReader& model, const std::vector<std::string>& choices)
{
  const auto tied = model.optional_choice("tied", choices).value_or("false");
  return tied == "true" ? Tie::Yes : tied == "apart" ? Tie::Apart : Tie::No;
}

std::vector<std::string> read_differences(MappingReader& model)
{
  std::vector<std::string> differences;
  if (model.optional("differences") == nullptr) return differences;
  for (const auto& text : model.required_sequence("differences")) {
    const bool is_text = text.kind == DocumentNode::Kind::Scalar && text.is_text && !text.scalar.empty();
    if (!is_text) model.add_fault("differences", "holds something other than texts; write a list of texts");
    differences.push_back(text.scalar);
  }
  return differences;
}

using Build = std::function<void(Workload&)>;

Build read_bert_keys(MappingReader& model, const Workload& workload, const FaultList& faults)
{
  BertSizes sizes;
  sizes.encoders = model.required_count("encoders", 1, most_encoders);
  sizes.hidden = read_width(model, "hidden");
  sizes.heads = read_width(model, "heads");
  sizes.intermediate = model.required_count("intermediate", 1, widest_intermediate);
  sizes.vocabulary = model.required_count("vocabulary", 1, largest_vocabulary);
  sizes.positions = model.required_count("positions", 1, longest_sequence);
  sizes.classes = read_width(model, "classes");
  sizes.attention = read_attention(model, sizes.attention, workload.training.dropout);
  if (faults.empty()) {
    refuse_uneven_parts(model, "heads", sizes.heads, "hidden", sizes.hidden);
    refuse_long_sequences(model, workload.sequence, sizes.positions);
  }
  return [sizes](Workload& built) {
    built.model = sizes;
    build_bert(sizes, built);
  };
}

Build read_gpt_keys(MappingReader& model, const Workload& workload, const FaultList& faults)
{
  GptSizes sizes;
  sizes.layers = model.required_count("layers", 1, most_blocks);
  sizes.hidden = read_width(model, "hidden");
  sizes.heads = read_width(model, "heads");
  sizes.intermediate = model.optional_count("intermediate", 1, widest_intermediate).value_or(4 * sizes.hidden);
  sizes.vocabulary = model.required_count("vocabulary", 1, largest_vocabulary);
  sizes.positions = model.optional_count("positions", 1, longest_sequence).value_or(workload.sequence);
  sizes.attention = read_attention(model, sizes.attention, workload.training.dropout);
  sizes.unit = read_unit(model, sizes.layers);
  const Tie tie = read_tie(model, {"true", "false", "apart"});
  sizes.tied = tie == Tie::Yes;
  if (faults.empty()) {
    refuse_uneven_parts(model, "heads", sizes.heads, "hidden", sizes.hidden);
    refuse_long_sequences(model, workload.sequence, sizes.positions);
  }
  auto recomputed = read_uniform_recomputed_operators(model, workload, sizes.layers, sizes.attention);
  return [sizes, tie, recomputed = std::move(recomputed)](Workload& built) {
    built.model = sizes;
    built.ties_apart = tie == Tie::Apart;
    built.recompute_operators = recomputed;
    build_gpt(sizes, built);
  };
}

Build read_llama_keys(MappingReader& model, const Workload& workload, const FaultList& faults)
{
  LlamaSizes sizes;
  sizes.layers = model.required_count("layers", 1, most_blocks);
  sizes.hidden = read_width(model, "hidden");
  sizes.heads = read_width(model, "heads");
  sizes.kv_heads = read_width(model, "kv_heads");
  sizes.intermediate = model.required_count("intermediate", 1, widest_intermediate);
  sizes.vocabulary = model.required_count("vocabulary", 1, largest_vocabulary);
  sizes.rope_theta = read_positive(model, "rope_theta", sizes.rope_theta);
  sizes.rope_scaling = decoder::read_rope_scaling(model);
  sizes.norm_epsilon = read_positive(model, "norm_epsilon", sizes.norm_epsilon);
  sizes.attention = read_attention(model, sizes.attention, 0);
  sizes.unit = read_unit(model, sizes.layers);
  const Tie tie = read_tie(model, {"false", "apart"});
  if (faults.empty()) {
    refuse_uneven_parts(model, "heads", sizes.heads, "hidden", sizes.hidden);
    refuse_uneven_parts(model, "kv_heads", sizes.kv_heads, "heads", sizes.heads);
  }
  auto recomputed = read_uniform_recomputed_operators(model, workload, sizes.layers, sizes.attention);
  return [sizes, tie, recomputed = std::move(recomputed)](Workload& built) {
    built.model = sizes;
    built.ties_apart = tie == Tie::Apart;
    built.recompute_operators = recomputed;
    build_llama(sizes, built);
  };
}

ExpertImbalance read_expert_imbalance(MappingReader& model, bool has_experts)
{
  constexpr double largest_spread = 10;
  constexpr std::uint64_t largest_seed = 1'000'000'000;
  ExpertImbalance imbalance;
  imbalance.most = model.optional_number("expert_imbalance").value_or(1);
  imbalance.spread = model.optional_number("expert_spread").value_or(0);
  imbalance.seed = model.optional_count("expert_seed", 0, largest_seed).value_or(1);
  for (const char* key : {"expert_imbalance", "expert_spread", "expert_seed"}) {
    if (!model.has(key) || has_experts) continue;
    model.add_fault(key, "no layer has experts; leave it out");
    return imbalance;
  }
  if (imbalance.most < 1) {
    model.add_fault("expert_imbalance",
                    fmt::format("{:g}; the most tokens over the mean are 1 (even) or more", imbalance.most));
  }
  if (imbalance.spread > largest_spread) {
    model.add_fault("expert_spread",
                    fmt::format("{:g}; the standard deviation of an expert's tokens over their mean is "
                                "0 (even) to {:g}",
                                imbalance.spread, largest_spread));
  } else if (model.has("expert_spread") && model.has("expert_imbalance")) {
    model.add_fault("expert_spread", "is drawn, and expert_imbalance says the most; leave out one of them");
  } else if (model.has("expert_seed") && imbalance.spread == 0) {
    model.add_fault("expert_seed", "nothing is drawn; write expert_spread, or leave it out");
  }
  return imbalance;
}

Build read_decoder_keys(MappingReader& model, const Workload& workload, const FaultList& faults)
{
  DecoderSizes sizes = decoder::read_sizes(model, workload.sequence, faults);
  sizes.attention = read_attention(model, sizes.attention, 0);
  if (sizes.attention == Attention::Recomputed) {
    model.add_fault("attention", "recomputed is of gpt and llama; write fused, which keeps no scores, or unfused");
  }
  sizes.unit = read_unit(model, 1);
  const Tie tie = read_tie(model, {"true", "false", "apart"});
  sizes.tied = tie == Tie::Yes;
  const ExpertImbalance imbalance = read_expert_imbalance(model, sizes.experts.count > 0);
  std::vector<BlockOperators> of_blocks;
  for (const auto* blocks : {&sizes.blocks, &sizes.mtp_blocks}) {
    for (const auto& block : *blocks) of_blocks.push_back(decoder::operators_of(sizes, block));
  }
  auto recomputed = read_recomputed_operators(model, workload, of_blocks);
  return [sizes = std::move(sizes), tie, imbalance, recomputed = std::move(recomputed)](Workload& built) {
    built.model = sizes;
    built.recompute_operators = recomputed;
    built.ties_apart = tie == Tie::Apart;
    built.expert_imbalance = imbalance;
    build_decoder(sizes, built);
  };
}

Build read_resnet_keys(MappingReader& model)
{
  ResnetSizes sizes;
  sizes.depth = model.required_choice("depth", {"50", "152"}) == "50" ? 50 : 152;
  sizes.image = model.optional_count("image", 32, 16384).value_or(sizes.image);
  sizes.classes = model.optional_count("classes", 1, widest).value_or(sizes.classes);
  return [sizes](Workload& built) {
    built.model = sizes;
    build_resnet(sizes, built);
  };
}

spmd::Trunk read_trunk(MappingReader& model)
{
  const auto name = model.required_choice("trunk", {"plain", "bert", "vit"});
  return name == "bert" ? spmd::Trunk::Bert : name == "vit" ? spmd::Trunk::Vit : spmd::Trunk::Plain;
}

/// Experts may have more parameters than a number holds.
double parameters_of(const spmd::MoeSizes& sizes)
{
  const auto hidden = static_cast<double>(sizes.hidden);
  const auto experts = static_cast<double>(std::max<std::uint64_t>(sizes.experts, 1));
  const double layer = 4 * hidden * hidden + 2 * experts * hidden * static_cast<double>(sizes.intermediate);
  return static_cast<double>(sizes.layers) * layer + 2 * hidden * static_cast<double>(sizes.vocabulary);
}

void read_experts(MappingReader& model, spmd::MoeSizes& sizes)
{
  constexpr std::uint64_t most_chosen = 2;
  constexpr double largest_capacity_factor = 1e6;
  const bool has_experts = model.has("experts");
  if (has_experts) sizes.experts = model.required_count("experts", 1, widest);
  for (const char* key : {"top_k", "capacity_factor", "capacity_rounding", "capacity_samples", "by_index"}) {
    if (has_experts || !model.has(key)) continue;
    model.add_fault(key, "goes with experts; leave it out, or write experts");
  }
  sizes.top_k = model.optional_count("top_k", 1, most_chosen).value_or(sizes.top_k);
  sizes.capacity_factor = read_positive(model, "capacity_factor", 1.25);
  if (sizes.capacity_factor > largest_capacity_factor) {
    model.add_fault("capacity_factor", fmt::format("{:.6g} is more than {:.0e}; write less", sizes.capacity_factor,
                                                   largest_capacity_factor));
  }
  const auto rounding = model.optional_choice("capacity_rounding", {"up", "down"});
  sizes.rounds_up = rounding.value_or("up") == "up";
  sizes.routing.capacity_samples = model.optional_count("capacity_samples", 1, largest_micro_batch).value_or(1);
  sizes.routing.by_index = model.optional_boolean("by_index").value_or(false);
}

void check_experts(MappingReader& model, const spmd::MoeSizes& sizes, std::uint64_t micro_batch)
{
  if (sizes.experts == 0) return;
  const std::uint64_t samples = sizes.routing.capacity_samples;
  if (micro_batch % samples != 0) {
    model.add_fault("capacity_samples",
                    fmt::format("{} do not divide the {} of a micro-batch; write a divisor", samples, micro_batch));
  }
  if (sizes.routing.by_index && sizes.parity) {
    model.add_fault("by_index", "the published graph of parity has slots; leave one of them out");
  }
  if (sizes.top_k > sizes.experts) {
    model.add_fault("top_k",
                    fmt::format("{} is more than the {} experts; write at most as many", sizes.top_k, sizes.experts));
  } else if (spmd::capacity_of(sizes) == 0) {
    model.add_fault("capacity_rounding",
                    "down leaves no slot for a sample in an expert; write up, or a larger capacity_factor");
  } else if (spmd::capacity_of(sizes) / samples > longest_sequence) {
    model.add_fault("capacity_factor", "gives an expert more slots than the longest sequence has tokens; write less");
  }
}

Build read_moe_keys(MappingReader& model, Workload& workload, const FaultList& faults)
{
  constexpr std::uint64_t largest_image = 16384;
  spmd::MoeSizes sizes;
  sizes.trunk = read_trunk(model);
  sizes.layers = model.required_count("layers", 1, most_moe_layers);
  const auto unit = model.optional_choice("unit", unit_names());
  sizes.by_operator = unit && unit_from_name(*unit) == Unit::Operator;
  sizes.hidden = read_width(model, "hidden");
  sizes.heads = read_width(model, "heads");
  sizes.intermediate = model.optional_count("intermediate", 1, widest_intermediate).value_or(4 * sizes.hidden);
  read_experts(model, sizes);
  if (sizes.trunk == spmd::Trunk::Vit) {
    sizes.image = model.required_count("image", 1, largest_image);
    sizes.patch = model.required_count("patch", 1, largest_image);
    sizes.classes = read_width(model, "classes");
  } else {
    sizes.sequence = model.required_count("sequence", 1, longest_sequence);
  }
  if (sizes.trunk == spmd::Trunk::Bert) sizes.vocabulary = model.required_count("vocabulary", 1, largest_vocabulary);
  sizes.parity = model.optional_boolean("parity").value_or(false);
  if (faults.empty()) {
    refuse_uneven_parts(model, "heads", sizes.heads, "hidden", sizes.hidden);
    refuse_uneven_parts(model, "patch", sizes.patch, "image", sizes.image);
  }
  if (faults.empty()) {
    if (sizes.trunk == spmd::Trunk::Vit) sizes.sequence = spmd::patches_of(sizes) + 1;
    check_experts(model, sizes, workload.micro_batch);
    if (parameters_of(sizes) > static_cast<double>(most_parameters)) {
      model.add_fault("layers", fmt::format("have about {:.3g} parameters; write sizes with at most {:.0e}",
                                            parameters_of(sizes), static_cast<double>(most_parameters)));
    }
    if (sizes.parity && workload.dtype != DType::Float32) {
      model.add_fault("parity", fmt::format("the published graph is in float32, not in {}; leave dtype out",
                                            name_of(workload.dtype)));
    }
  }
  workload.sequence = sizes.sequence;
  return [sizes](Workload& built) {
    built.model = sizes;
    build_moe(sizes, built);
  };
}

using Positions = std::unordered_map<std::string, std::size_t>;

/// The layers that layer `position` reads.
std::vector<std::size_t> read_inputs(MappingReader& entry, const Positions& positions, std::size_t position)
{
  std::vector<std::size_t> inputs;
  for (const auto& input : entry.required_sequence("inputs")) {
    const auto known = positions.find(input.scalar);
    if (input.kind != DocumentNode::Kind::Scalar || !input.is_text) {
      entry.add_fault("inputs", "holds something other than names; write a list of layer names");
    } else if (known == positions.end()) {
      entry.add_fault("inputs", in_quotes(input.scalar) + " is not a layer; write names of layers above");
    } else if (known->second >= position) {
      entry.add_fault("inputs",
                      in_quotes(input.scalar) + " is not above this layer; list a layer before those that read it");
    } else if (std::find(inputs.begin(), inputs.end(), known->second) != inputs.end()) {
      entry.add_fault("inputs", in_quotes(input.scalar) + " is named twice; remove one");
    } else {
      inputs.push_back(known->second);
    }
  }
  return inputs;
}

/// The experts of a listed layer, which are a part of it.
std::optional<Experts> read_experts_of(MappingReader& entry, const Layer& layer, FaultList& faults)
{
  const DocumentNode* const node = entry.optional("experts");
  if (node == nullptr) return std::nullopt;
  if (node->kind != DocumentNode::Kind::Mapping) {
    entry.add_fault("experts",
                    "is no mapping; write count, per_token, parameters, forward, activations and dispatched");
    return std::nullopt;
  }
  MappingReader reader(*node, entry.path_of("experts") + ".", faults);
  Experts experts;
  experts.count = reader.required_count("count", 1, widest);
  experts.per_token = reader.required_count("per_token", 1, widest);
  if (experts.per_token > experts.count) {
    reader.add_fault("per_token", fmt::format("{} is more than the {} experts; write at most as many",
                                              experts.per_token, experts.count));
  }
  experts.parameters = reader.required_count("parameters", 0, most_parameters);
  if (experts.parameters > layer.parameters) {
    reader.add_fault("parameters", fmt::format("{} are more than the {} of the layer; write the part of those",
                                               experts.parameters, layer.parameters));
  } else if (experts.parameters % experts.count != 0) {
    reader.add_fault("parameters", fmt::format("{} are not {} equal experts; write a multiple of their number",
                                               experts.parameters, experts.count));
  }
  experts.forward = reader.required_flops("forward");
  experts.backward = reader.optional_flops("backward").value_or(2 * experts.forward);
  const Flops of_parameters = experts.parameters == 0 ? Flops(0) : 0.5 * experts.backward;
  experts.backward_weight = reader.optional_flops("backward_weight").value_or(of_parameters);
  experts.activations = reader.required_bytes("activations");
  const auto require_part = [&](const char* key, double part, double whole, const char* unit) {
    if (part <= whole) return;
    reader.add_fault(key, fmt::format("{:.6g} {} are more than the {:.6g} of the layer; write the part of those", part,
                                      unit, whole));
  };
  require_part("forward", experts.forward.value, layer.forward.value, "FLOP");
  require_part("backward", experts.backward.value, layer.backward.value, "FLOP");
  require_part("backward_weight", experts.backward_weight.value, layer.backward_weight.value, "FLOP");
  require_part("activations", experts.activations.value, layer.activations.value, "B");
  experts.dispatched = reader.required_bytes("dispatched");
  reader.refuse_unknown();
  return experts;
}

Layer read_layer(MappingReader& entry, const Positions& positions, std::size_t position, MemoryModel memory_model,
                 FaultList& faults)
{
  Layer layer;
  layer.name = entry.required_text("name");
  if (entry.has("name") && layer.name.empty()) entry.add_fault("name", "is empty; write a string");
  layer.forward = entry.required_flops("forward");
  layer.backward = entry.optional_flops("backward").value_or(2 * layer.forward);
  layer.parameters = entry.required_count("parameters", 0, most_parameters);
  layer.backward_weight = entry.optional_flops("backward_weight").value_or(default_backward_weight(layer));
  if (layer.backward_weight > layer.backward) {
    entry.add_fault(
        "backward_weight",
        fmt::format("{:.6g} FLOP are more than those of backward, {:.6g}; write the part of it that computes "
                    "the gradients of parameters",
                    layer.backward_weight.value, layer.backward.value));
  }
  layer.activations = entry.required_bytes("activations");
  layer.output = entry.required_bytes("output");
  layer.gradient = entry.optional_bytes("gradient").value_or(layer.output);
  layer.sky_memory = memory_model == MemoryModel::Sky ? entry.required_bytes("memory")
                                                      : entry.optional_bytes("memory").value_or(Bytes(0));
  if (entry.optional("inputs")) {
    layer.inputs = read_inputs(entry, positions, position);
  } else if (position > 0) {
    layer.inputs = {position - 1};
  }
  layer.experts = read_experts_of(entry, layer, faults);
  entry.refuse_unknown();
  return layer;
}

Build read_list_keys(MappingReader& model, const Workload& workload, FaultList& faults)
{
  Workload listed;
  listed.input = model.optional_bytes("input").value_or(Bytes(0));
  const auto& entries = model.required_sequence("layers");
  const auto* list = model.optional("layers");
  if (list && list->kind == DocumentNode::Kind::Sequence && (entries.empty() || entries.size() > most_layers)) {
    model.add_fault("layers", fmt::format("lists {} layers; write 1 to {}", entries.size(), most_layers));
    return {};
  }
  Positions positions;  // of the first layer with each name
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    const auto name = std::find_if(entry.members.begin(), entry.members.end(),
                                   [](const auto& member) { return member.key == "name"; });
    names.push_back(name == entry.members.end() ? "" : name->value.scalar);
    positions.try_emplace(names.back(), names.size() - 1);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    MappingReader entry(entries[i], fmt::format("layers[{}].", i), faults);
    const std::size_t first = positions.at(names[i]);
    if (first < i && !names[i].empty()) {
      entry.add_fault("name",
                      fmt::format("{} is already the name of layers[{}]; write another", in_quotes(names[i]), first));
    }
    listed.layers.push_back(read_layer(entry, positions, i, workload.memory_model, faults));
  }
  const bool has_experts =
      std::any_of(listed.layers.begin(), listed.layers.end(), [](const Layer& layer) { return layer.experts; });
  listed.expert_imbalance = read_expert_imbalance(model, has_experts);
  return [listed](Workload& built) {
    built.layers = listed.layers;
    built.input = listed.input;
    built.expert_imbalance = listed.expert_imbalance;
  };
}

enum class Need : std::uint8_t { Refused, Optional, Required };

/// A kind of model: which keys of a file it takes, and how its own are read.
struct ModelKind {
  std::string name;
  std::function<Build(MappingReader&, Workload&, FaultList&)> read;
  Need sequence = Need::Refused;
  bool has_operators = false;   ///< may have compute: operators
  bool has_dropout = false;     ///< takes the key dropout
  bool has_sky_memory = false;  ///< may have memory_model: sky
  bool is_executable = true;    ///< takes the keys of training
};

const std::vector<ModelKind>& model_kinds()
{
  static const std::vector<ModelKind> kinds = {
      {.name = "bert",
       .read = read_bert_keys,
       .sequence = Need::Required,
       .has_operators = true,
       .has_dropout = true,
       .has_sky_memory = true},
      {.name = "gpt", .read = read_gpt_keys, .sequence = Need::Required, .has_operators = true, .has_dropout = true},
      {.name = "llama", .read = read_llama_keys, .sequence = Need::Required, .has_operators = true},
      {.name = "decoder", .read = read_decoder_keys, .sequence = Need::Required, .has_operators = true},
      {.name = "resnet", .read = [](MappingReader& file, Workload&, FaultList&) { return read_resnet_keys(file); }},
      {.name = "moe", .read = read_moe_keys, .has_dropout = true},
      {.name = "layers",
       .read = read_list_keys,
       .sequence = Need::Optional,
       .has_sky_memory = true,
       .is_executable = false},
  };
  return kinds;
}

/// The kind that a file names. @throws InputError for a missing or unknown name.
const ModelKind& read_model_kind(MappingReader& file, const FaultList& faults)
{
  std::vector<std::string> names;
  for (const auto& kind : model_kinds()) names.push_back(kind.name);
  if (file.has("model_type") && !file.has("model")) {
    file.add_fault("model_type",
                   "of a model of Hugging Face's transformers; make a workload of it with isobar workload import");
    faults.throw_if_any();
  }
  const auto name = file.required_choice("model", names);
  faults.throw_if_any();  // which keys are right depends on the model
  return *std::find_if(model_kinds().begin(), model_kinds().end(),
                       [&](const ModelKind& kind) { return kind.name == name; });
}

/// "bert, gpt and llama": those that may have compute: operators.
std::string names_with_operators()
{
  std::vector<std::string_view> names;
  for (const auto& kind : model_kinds()) {
    if (kind.has_operators) names.push_back(kind.name);
  }
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

/// The file that messages name, and what precedes each key in them.
struct FaultPlace {
  std::string file;
  std::string path;
  bool needs_framework = true;  ///< with compute: operators; otherwise an override gives it
};

/// In which numbers products are computed. Call when dtype and compute are known.
void read_products(MappingReader& file, Workload& workload)
{
  std::vector<std::string> names = {"tf32", "float32"};
  const auto recipes = product_recipe_names();
  names.insert(names.end(), recipes.begin(), recipes.end());
  const auto products = file.optional_choice("matmul_dtype", names);
  if (!products) return;
  workload.has_tf32_products = *products == "tf32";
  workload.recipe = product_recipe_from_name(*products).value_or(ProductRecipe::None);
  if (workload.has_tf32_products && workload.dtype != DType::Float32) {
    file.add_fault("matmul_dtype",
                   fmt::format("tf32 is for float32, not for {}; leave it out", name_of(workload.dtype)));
  }
  if (workload.recipe != ProductRecipe::None && size_of(workload.dtype) != 2) {
    file.add_fault("matmul_dtype", fmt::format("{} is for models in 16 bits, not for {}; write dtype: bf16", *products,
                                               name_of(workload.dtype)));
  } else if (workload.recipe != ProductRecipe::None && workload.compute != ComputeModel::Operators) {
    file.add_fault("matmul_dtype",
                   fmt::format("{} counts with compute: operators; write that, or leave it out", *products));
  }
}

Workload workload_from_document(const DocumentNode& document, const std::string& name, const FaultPlace& place)
{
  FaultList faults(place.file);
  MappingReader file(document, place.path, faults);
  const ModelKind& kind = read_model_kind(file, faults);

  Workload workload;
  workload.name = std::filesystem::path(name).stem().string();
  workload.micro_batch = file.optional_count("micro_batch", 1, largest_micro_batch).value_or(1);
  if (kind.sequence == Need::Optional) {
    workload.sequence = file.optional_count("sequence", 1, longest_sequence).value_or(1);
  } else if (kind.sequence == Need::Required) {
    workload.sequence = file.required_count("sequence", 1, longest_sequence);
  }
  if (const auto dtype = file.optional_choice("dtype", dtype_names())) workload.dtype = *dtype_from_name(*dtype);
  const auto compute = file.optional_choice("compute", compute_model_names());
  if (compute) workload.compute = *compute_model_from_name(*compute);
  read_products(file, workload);
  const bool has_framework = file.optional("framework") != nullptr;
  if (workload.compute == ComputeModel::Operators && !kind.has_operators) {
    file.add_fault("compute",
                   fmt::format("operators is for {}, not for {}; write rate", names_with_operators(), kind.name));
  } else if (workload.compute == ComputeModel::Rate && has_framework) {
    const bool is_said = compute || !file.has("compute");  // a wrong value is a fault by itself
    if (is_said) file.add_fault("framework", "goes with compute: operators; leave it out, or write that");
  } else if (auto framework = read_training_system(file, "framework", FlagSpelling::Yaml, faults)) {
    workload.framework = std::move(framework->name);
    workload.changed_framework = std::move(framework->changed);
  } else if (workload.compute == ComputeModel::Operators && place.needs_framework && !has_framework) {
    file.add_fault("framework", fmt::format("missing; compute: operators takes the constants of one: {}",
                                            fmt::join(framework_names(), ", ")));
  }
  if (const auto optimizer = file.optional_choice("optimizer", optimizer_names())) {
    workload.optimizer = *optimizer_from_name(*optimizer);
  }
  if (const auto memory_model = file.optional_choice("memory_model", memory_model_names())) {
    workload.memory_model = *memory_model_from_name(*memory_model);
  }
  if (kind.is_executable) {
    workload.training = read_training(file, workload.optimizer, kind.has_dropout);
    workload.differences = read_differences(file);
  }
  if (workload.memory_model == MemoryModel::Sky && !kind.has_sky_memory) {
    file.add_fault("memory_model", fmt::format("sky is not available for {}; write training", kind.name));
  }

  const Build build = kind.read(file, workload, faults);
  file.refuse_unknown();
  faults.throw_if_any();

  build(workload);
  if (workload.memory_model != MemoryModel::Sky) {
    for (auto& layer : workload.layers) layer.sky_memory = Bytes(0);
  }
  return workload;
}

void set_lines(DocumentNode& node, int line)
{
  node.line = line;
  for (auto& item : node.items) set_lines(item, line);
  for (auto& member : node.members) set_lines(member.value, line);
}

DocumentNode& member_of(DocumentNode& mapping, const std::string& key)
{
  const auto same = std::find_if(mapping.members.begin(), mapping.members.end(),
                                 [&](const auto& member) { return member.key == key; });
  if (same != mapping.members.end()) return same->value;
  DocumentNode& added = mapping.members.emplace_back(DocumentNode::Member{key, {}}).value;
  added.line = mapping.line;
  return added;
}

constexpr std::string_view of_framework = "framework.";

/// Whether a key is `framework`, or a flag of it.
bool is_of_framework(const std::string& key)
{
  return key == "framework" || key.starts_with(of_framework);
}

/// Replaces or adds a member of a file. "framework.FLAG" is a flag of the software that `framework` names.
void set_override(DocumentNode& document, const DocumentNode::Member& override)
{
  if (!override.key.starts_with(of_framework)) {
    member_of(document, override.key) = override.value;
    return;
  }
  DocumentNode& framework = member_of(document, "framework");
  if (framework.kind != DocumentNode::Kind::Mapping) {
    DocumentNode mapping;
    mapping.kind = DocumentNode::Kind::Mapping;
    mapping.line = framework.line;
    if (framework.kind != DocumentNode::Kind::Null) mapping.members.push_back({"name", framework});
    framework = mapping;
  }
  member_of(framework, override.key.substr(of_framework.size())) = override.value;
}

DocumentNode parse(const std::string& text, const std::string& name)
{
  require_file_kind(FileKind::Workload, text, name);
  return name.ends_with(".json") ? parse_json(text, name) : parse_yaml(text, name);
}

/// Parses the value of a setting, which has no lines.
DocumentNode parse_setting(const std::string& key, const std::string& value, const std::string& file)
{
  const std::string place = file + ": " + key;
  DocumentNode node;
  try {
    node = parse_yaml(value, "");
  } catch (const InputError& fault) {
    const std::string text = fault.what();  // ":LINE: what"
    throw InputError(place, text.substr(text.find(' ') + 1));
  }
  if (node.kind == DocumentNode::Kind::Mapping) {
    throw InputError(place, key == "framework" ? "is a mapping; write a name, and each flag as framework.FLAG=VALUE"
                                               : "is a mapping; write one value, or a list such as [1, 2]");
  }
  node.line = 0;
  return node;
}

}  // namespace

Workload workload_from_text(const std::string& text, const std::string& name)
{
  return workload_from_document(parse(text, name), name, {name, ""});
}

Workload workload_from_text(const std::string& text, const std::string& name, const WorkloadOverrides& overrides)
{
  DocumentNode document = parse(text, name);
  const bool gives_framework = std::ranges::any_of(overrides.members, [](const auto& override) {
    return is_of_framework(override.key) || override.key == "compute";
  });
  Workload workload = workload_from_document(document, name, {name, "", !gives_framework});
  if (overrides.members.empty()) return workload;
  // The file is right on its own, so any fault from here on comes from the overrides.
  document.line = overrides.line;
  for (auto& member : document.members) set_lines(member.value, overrides.line);
  for (const auto& override : overrides.members) set_override(document, override);
  return workload_from_document(document, name, {overrides.file, overrides.path});
}

Workload workload_from_text(const std::string& text, const std::string& name, const WorkloadSettings& settings,
                            const std::string& place)
{
  WorkloadOverrides overrides{place, "", 0, {}};
  for (const auto& [key, value] : settings) {
    overrides.members.push_back({key, parse_setting(key, value, place)});
  }
  return workload_from_text(text, name, overrides);
}

std::string workload_fingerprint(const std::string& text, const WorkloadSettings& settings)
{
  ContentHash hash;
  hash.add(text);
  for (const auto& [key, value] : settings) {
    hash.add(std::string_view("\0", 1));
    hash.add(key + "=" + value);
  }
  return hash.text();
}

Workload read_workload(const std::filesystem::path& file)
{
  return workload_from_text(read_file(file), file.string());
}

}  // namespace isobar

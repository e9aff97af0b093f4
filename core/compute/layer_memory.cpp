#include "core/compute/layer_memory.hpp"

#include "core/compute/transformer.hpp"
#include "core/model/decoder/decoder_parts.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <variant>
#include <vector>

namespace isobar::compute {

namespace {

/// What a block of a decoder, or a part of one, keeps.
Bytes activations_of_decoder(const DecoderSizes& sizes, std::size_t layer, const Workload& workload,
                             const LayerDivision& division)
{
  const auto kept = decoder::kept_bytes(sizes, decoder_layer(layer, sizes), workload);
  const auto shards = static_cast<double>(division.shards);
  const auto parts = static_cast<double>(workload.context.degree);
  Bytes all((kept.repeated / (division.divides_sequence ? shards : 1) + kept.divided / shards) / parts);
  const auto& experts = workload.layers[layer].experts;
  if (experts && workload.experts.divides()) {  // of the tokens that come beyond its own
    all += (1 - 1 / experts->imbalance) * experts->activations / shards;
  }
  return all;
}

/// What a layer that is not recomputed keeps.
Bytes all_activations(const TransformerLayer& layer, const Workload& workload, const LayerDivision& division)
{
  const double z = size_of(workload.dtype);
  const double mask = workload.training.dropout > 0 ? 1 : 0;
  const auto shards = static_cast<double>(division.shards);
  const double numbers = layer.tokens * layer.hidden;
  // Of each norm its input and its output, and masks of dropouts.
  double repeated = numbers * (2 * z * layer.norms + mask * layer.residuals);
  if (layer.looked_up > 0) repeated += numbers * mask;
  if (layer.connections > 0) repeated += numbers * z * layer.streams;
  double divided = layer.tokens * (layer.kept_heads + (layer.is_gated ? 3 : 2) * layer.inner) * z;
  if (layer.attention == Attention::Unfused) divided += layer.scores * (z + mask * (1 + z));
  if (layer.attention == Attention::Fused && layer.scores > 0) {
    constexpr double sum_of_exponentials = 4;  // bytes of each token and head
    divided += sum_of_exponentials * layer.tokens * layer.heads;
  }
  return Bytes(repeated / (division.divides_sequence ? shards : 1) + divided / shards);
}

/// What a recipe of products adds to kept activations: a copy in fewer bits of the input of each linear, in place of
/// the input where nothing else keeps that.
Bytes change_by_recipe(const TransformerLayer& layer, const Workload& workload, const LayerDivision& division)
{
  if (workload.recipe == ProductRecipe::None) return {};
  const double copy = costs_of(workload.recipe).number;
  const auto shards = static_cast<double>(division.shards);
  double change = 0;
  for (const auto& linear : layer.linears) {
    if (!linear.is_quantized) continue;
    const bool is_of_shard = linear.is_divided && linear.divides_inputs;
    const bool has_whole_experts = linear.is_grouped && !linear.is_divided;
    const double parts = is_of_shard || (division.divides_sequence && !has_whole_experts) ? shards : 1;
    const double numbers = linear.rows * linear.products * linear.inputs / parts;
    change += numbers * (copy - (linear.shares_input ? 0 : size_of(workload.dtype)));
  }
  return Bytes(change);
}

/// What is made in a block, or comes into it, and who needs it. Operators are by number in the block.
struct BlockTensor {
  double bytes = 0;  ///< on a shard
  std::optional<BlockOperator> maker = {};
  std::vector<BlockOperator> savers = {};   ///< keep it for their backward pass
  std::vector<BlockOperator> readers = {};  ///< need it to run again, beside the savers
};

/// Of a block of a gpt or llama. Those of its attention come first, as many as `of_attention`.
struct BlockTensors {
  std::vector<BlockTensor> all;
  std::size_t of_attention = 0;
};

BlockTensors tensors_of(const TransformerLayer& attention, const TransformerLayer& feed_forward,
                        const Workload& workload, const LayerDivision& division)
{
  using enum BlockOperator;
  const double z = size_of(workload.dtype);
  const auto shards = static_cast<double>(division.shards);
  const double numbers = attention.tokens * attention.hidden / (division.divides_sequence ? shards : 1);
  const double heads = attention.tokens * attention.hidden / shards * z;     // of queries, or of their sums
  const double kept = attention.tokens * attention.kept_heads / shards * z;  // queries, keys, values and the sums
  const double keys = (kept - 2 * heads) / 2;
  const double inner = feed_forward.tokens * feed_forward.inner / shards * z;
  const bool drops = workload.training.dropout > 0;
  const bool has_recipe = workload.recipe != ProductRecipe::None;
  const double read = has_recipe ? costs_of(workload.recipe).number / z : 1;  // by linears alone
  const double copied = has_recipe ? 1 + read : 1;                            // by linears, too
  BlockTensors tensors;
  auto& all = tensors.all;
  all.push_back({numbers * z, {}, {Norm1}, {Dropout1}});
  all.push_back({numbers * z * read, Norm1, {Qkv}});
  if (attention.attention == Attention::Fused) {
    constexpr double sum_of_exponentials = 4;
    all.push_back({heads + 2 * keys, Qkv, {Context}});
    all.push_back({heads * copied, Context, {Context, Projection}});
    all.push_back(
        {sum_of_exponentials * attention.tokens * attention.hidden / attention.width / shards, Context, {Context}});
  } else {
    const double scores = attention.scores / shards;
    all.push_back({heads + keys, Qkv, {Scores}});
    all.push_back({keys, Qkv, {Context}});
    all.push_back({scores * z, Scores, {}, {Softmax}});
    all.push_back({scores * z, Softmax, drops ? std::vector{Softmax} : std::vector{Softmax, Context}, {ScoreDropout}});
    if (drops) {
      all.push_back({scores, ScoreDropout, {ScoreDropout}});
      all.push_back({scores * z, ScoreDropout, {Context}});
    }
    all.push_back({heads * read, Context, {Projection}});
  }
  all.push_back({numbers * z, Projection, {}, {Dropout1}});
  if (drops) all.push_back({numbers, Dropout1, {Dropout1}});
  tensors.of_attention = all.size();
  all.push_back({numbers * z, Dropout1, {Norm2}, {Dropout2}});
  all.push_back({numbers * z * read, Norm2, {Up}});
  all.push_back({(feed_forward.is_gated ? 2 : 1) * inner, Up, {Activation}});
  all.push_back({inner * read, Activation, {Down}});
  all.push_back({numbers * z, Down, {}, {Dropout2}});
  if (drops) all.push_back({numbers, Dropout2, {Dropout2}});
  return tensors;
}

/// Neighbouring operators that recompute are a segment: it keeps what comes into it, and what others save. Blocks begin
/// segments (Aceso: runtime/megatron/model/base_model.py), and so do stages.
class Segments {
 public:
  Segments(const BlockOperators& recomputed, bool is_cut)
  {
    std::size_t current = 0;
    for (std::size_t which = 0; which < operators_of_block; ++which) {
      if (!recomputed.has(which)) continue;
      const bool continues = which > 0 && recomputed.has(which - 1) && !(is_cut && which == operators_of_attention);
      if (!continues) ++current;
      of_[which] = current;
    }
    count_ = current;
  }

  std::size_t count() const { return count_; }
  /// From 1; 0: it does not recompute.
  std::size_t of(BlockOperator which) const { return of_[static_cast<std::size_t>(which)]; }

  bool keeps(const BlockTensor& tensor) const
  {
    const std::size_t made_in = tensor.maker ? of(*tensor.maker) : 0;
    const auto comes_from_outside = [&](BlockOperator user) { return of(user) != 0 && of(user) != made_in; };
    const auto saves = [&](BlockOperator saver) { return of(saver) == 0 || comes_from_outside(saver); };
    return std::ranges::any_of(tensor.savers, saves) || std::ranges::any_of(tensor.readers, comes_from_outside);
  }

 private:
  std::array<std::size_t, operators_of_block> of_ = {};
  std::size_t count_ = 0;
};

/// Of a layer of whose block some operators recompute.
LayerMemory partly_recomputed(const Workload& workload, std::size_t layer, const Framework& framework,
                              const LayerDivision& division, bool begins_stage)
{
  const auto [first, last] = block_of(workload, layer);
  const BlockOperators own = operators_of(workload, layer);
  const bool is_cut = begins_stage && layer != first;
  const Segments segments(recomputed_operators(workload, layer), is_cut);
  const auto tensors = tensors_of(transformer_layer(workload, first, division.shards, framework),
                                  transformer_layer(workload, last, division.shards, framework), workload, division);
  LayerMemory memory;
  std::vector<double> again(segments.count() + 1);  // by segment, what its operators save that is not kept
  for (std::size_t i = 0; i < tensors.all.size(); ++i) {
    const BlockTensor& tensor = tensors.all[i];
    const bool is_own = own.has(i < tensors.of_attention ? BlockOperator::Norm1 : BlockOperator::Norm2);
    if (segments.keeps(tensor)) {
      if (is_own) memory.kept += Bytes(tensor.bytes);
    } else if (!tensor.savers.empty()) {
      again[segments.of(tensor.savers.front())] += tensor.bytes;
    }
  }
  for (std::size_t which = 0; which < operators_of_block; ++which) {
    if (!own.has(which)) continue;
    const std::size_t segment = segments.of(static_cast<BlockOperator>(which));
    if (segment != 0) memory.workspace = std::max(memory.workspace, Bytes(again[segment]));
  }
  return memory;
}

}  // namespace

LayerMemory layer_memory(const Workload& workload, std::size_t layer, const Framework& framework,
                         const LayerDivision& division, const SailorSizes* sizes, bool begins_stage)
{
  const auto all_of = [&](std::size_t each, const TransformerLayer& layer_of) {
    if (sizes == nullptr) {
      const auto* decoder = std::get_if<DecoderSizes>(&workload.model);
      const bool is_block = layer_of.looked_up == 0 && layer_of.vocabulary == 0;
      const Bytes all = decoder == nullptr || !is_block ? all_activations(layer_of, workload, division)
                                                        : activations_of_decoder(*decoder, each, workload, division);
      return all + change_by_recipe(layer_of, workload, division);
    }
    return sizes->of_layer(workload, each, division.shards).activations * samples_of_microbatch(workload);
  };
  const auto of_layer = transformer_layer(workload, layer, division.shards, framework);
  const auto shards = static_cast<double>(division.shards);
  LayerMemory memory;
  if (sizes == nullptr && recomputed_operators(workload, layer).any()) {
    memory = partly_recomputed(workload, layer, framework, division, begins_stage);
  } else if (!is_recomputed(workload, layer)) {
    memory.kept = all_of(layer, of_layer);
  } else {
    const auto [first, last] = block_of(workload, layer);
    bool repeats_block = true;
    for (std::size_t each = first; each <= last; ++each) repeats_block = repeats_block && is_recomputed(workload, each);
    const double input = of_layer.tokens * of_layer.hidden * of_layer.streams * size_of(workload.dtype);
    const bool has_input = !repeats_block || layer == first || begins_stage;
    const Bytes all = all_of(layer, of_layer);
    if (has_input) memory.kept = std::min(all, Bytes(input / (division.divides_sequence ? shards : 1)));
    memory.workspace = all;
    for (std::size_t each = first; repeats_block && each <= last; ++each) {
      if (each == layer) continue;
      memory.workspace += all_of(each, transformer_layer(workload, each, division.shards, framework));
    }
  }
  if (sizes == nullptr) {
    const double logits = of_layer.tokens * of_layer.vocabulary / shards;
    memory.workspace = std::max(memory.workspace, Bytes(logits * framework.memory.logit));
  }
  memory.kept = memory.kept * framework.memory.activations;
  memory.workspace = memory.workspace * framework.memory.activations;
  return memory;
}

namespace {

/// The part of a model's parameters that are weights of products by its recipe.
double part_in_fewer_bits(const Framework& framework, const Workload& workload)
{
  double all = 0;
  double weights = 0;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const auto of_layer = transformer_layer(workload, layer, 1, framework);
    all += of_layer.looked_up;
    for (const auto& linear : of_layer.linears) {
      const double own = linear.inputs * linear.outputs * linear.products;
      all += own;
      if (linear.is_quantized) weights += own;
    }
  }
  return weights / all;
}

}  // namespace

ParameterBytes state_of(const Framework& framework, const Workload& workload)
{
  const auto& memory = framework.memory;
  const StateBytes& state = workload.dtype == DType::Float32 ? memory.state32 : memory.state16;
  ParameterBytes bytes{state.parameters, state.gradients, state.optimizer,
                       static_cast<double>(size_of(framework.gathered)), state.update};
  if (workload.recipe != ProductRecipe::None) {
    bytes.parameter += quantized_copies * costs_of(workload.recipe).number * part_in_fewer_bits(framework, workload);
  }
  return bytes;
}

}  // namespace isobar::compute

#include "core/compute/layer_memory.hpp"

#include "core/compute/transformer.hpp"
#include "core/model/decoder/part_memory.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::compute {

namespace {

/// The tensors of a layer of a block, for a micro-batch or a part of its sequences.
struct LayerTensors {
  std::vector<BlockTensor> all;
  double parts = 1;  ///< into which devices divide the sequences that they are of
};

LayerTensors tensors_of_decoder(const DecoderSizes& sizes, std::size_t layer, const Workload& workload)
{
  return {decoder::kept_by_layer(sizes, decoder_layer(layer, sizes), workload),
          static_cast<double>(workload.context.degree)};
}

/// Those of the tensors of a layer that count, on a shard.
template <typename Counts>
Bytes bytes_of(const LayerTensors& tensors, std::size_t layer, const Workload& workload, const LayerDivision& division,
               Counts counts)
{
  const auto shards = static_cast<double>(division.shards);
  double repeated = 0;
  double divided = 0;
  double all_routed = 0;
  double routed = 0;
  for (const auto& tensor : tensors.all) {
    if (tensor.is_routed) all_routed += tensor.repeated + tensor.divided;
    if (!counts(tensor)) continue;
    repeated += tensor.repeated;
    divided += tensor.divided;
    if (tensor.is_routed) routed += tensor.repeated + tensor.divided;
  }
  Bytes all((repeated / (division.divides_sequence ? shards : 1) + divided / shards) / tensors.parts);
  const auto& experts = workload.layers[layer].experts;
  if (routed > 0 && experts && workload.experts.divides()) {  // of the tokens that come beyond its own
    all += routed / all_routed * ((1 - 1 / experts->imbalance) * experts->activations / shards);
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

/// What a recipe of products adds to kept activations: a copy in fewer bits of the input of each linear that counts, in
/// place of the input where nothing else keeps that.
template <typename Counts>
Bytes change_by_recipe(const TransformerLayer& layer, const Workload& workload, const LayerDivision& division,
                       Counts counts)
{
  if (workload.recipe == ProductRecipe::None) return {};
  const double copy = costs_of(workload.recipe).number;
  const auto shards = static_cast<double>(division.shards);
  double change = 0;
  for (const auto& linear : layer.linears) {
    if (!linear.is_quantized || !counts(linear)) continue;
    const bool is_of_shard = linear.is_divided && linear.divides_inputs;
    const bool has_whole_experts = linear.is_grouped && !linear.is_divided;
    const double parts = is_of_shard || (division.divides_sequence && !has_whole_experts) ? shards : 1;
    const double numbers = linear.rows * linear.products * linear.inputs / parts;
    change += numbers * (copy - (linear.shares_input ? 0 : size_of(workload.dtype)));
  }
  return Bytes(change);
}

/// The tensors of a block of a gpt or llama, first those of its attention, then those of its feed-forward network.
std::array<std::vector<BlockTensor>, 2> tensors_of_uniform(const TransformerLayer& attention,
                                                           const TransformerLayer& feed_forward,
                                                           const Workload& workload)
{
  using enum BlockOperator;
  const double z = size_of(workload.dtype);
  const double numbers = attention.tokens * attention.hidden;
  const double heads = numbers * z;                                 // of queries, or of their sums
  const double kept = attention.tokens * attention.kept_heads * z;  // queries, keys, values and the sums
  const double keys = (kept - 2 * heads) / 2;
  const double inner = feed_forward.tokens * feed_forward.inner * z;
  const bool drops = workload.training.dropout > 0;
  std::array<std::vector<BlockTensor>, 2> tensors;
  auto& first = tensors[0];
  first.push_back({numbers * z, 0, {}, {Norm1}, {Dropout1}});
  first.push_back({numbers * z, 0, Norm1, {Qkv}});
  if (attention.attention == Attention::Fused) {
    constexpr double sum_of_exponentials = 4;
    first.push_back({0, heads + 2 * keys, Qkv, {Context}});
    first.push_back({0, heads, Context, {Context, Projection}});
    first.push_back({0, sum_of_exponentials * numbers / attention.width, Context, {Context}});
  } else {
    const double scores = attention.scores;
    first.push_back({0, heads + keys, Qkv, {Scores}});
    first.push_back({0, keys, Qkv, {Context}});
    first.push_back({0, scores * z, Scores, {}, {Softmax}});
    first.push_back(
        {0, scores * z, Softmax, drops ? std::vector{Softmax} : std::vector{Softmax, Context}, {ScoreDropout}});
    if (drops) {
      first.push_back({0, scores, ScoreDropout, {ScoreDropout}});
      first.push_back({0, scores * z, ScoreDropout, {Context}});
    }
    first.push_back({0, heads, Context, {Projection}});
  }
  first.push_back({numbers * z, 0, Projection, {}, {Dropout1}});
  if (drops) first.push_back({numbers, 0, Dropout1, {Dropout1}});
  auto& last = tensors[1];
  last.push_back({numbers * z, 0, Dropout1, {Norm2}, {Dropout2}});
  last.push_back({numbers * z, 0, Norm2, {Up}});
  last.push_back({0, (feed_forward.is_gated ? 2 : 1) * inner, Up, {Activation}});
  last.push_back({0, inner, Activation, {Down}});
  last.push_back({numbers * z, 0, Down, {}, {Dropout2}});
  if (drops) last.push_back({numbers, 0, Dropout2, {Dropout2}});
  return tensors;
}

/// Of each layer of a block.
std::vector<LayerTensors> tensors_of_block(const Workload& workload, const BlockOfLayers& block,
                                           const LayerDivision& division, const Framework& framework)
{
  std::vector<LayerTensors> tensors;
  if (const auto* sizes = std::get_if<DecoderSizes>(&workload.model)) {
    for (std::size_t each = block.first; each <= block.last; ++each) {
      tensors.push_back(tensors_of_decoder(*sizes, each, workload));
    }
    return tensors;
  }
  auto [attention, feed_forward] =
      tensors_of_uniform(transformer_layer(workload, block.first, division.shards, framework),
                         transformer_layer(workload, block.last, division.shards, framework), workload);
  if (block.first == block.last) {
    attention.insert(attention.end(), feed_forward.begin(), feed_forward.end());
    return {{std::move(attention)}};
  }
  return {{std::move(attention)}, {std::move(feed_forward)}};
}

/// Neighbouring operators that recompute are a segment: it keeps what comes into it, and what others save. Blocks begin
/// segments (Aceso: runtime/megatron/model/base_model.py), and so do stages.
class Segments {
 public:
  /// `of_block` are the operators of the block; `is_cut`: a stage begins between its attention and the rest.
  Segments(const BlockOperators& recomputed, const BlockOperators& of_block, bool is_cut, bool drops_outputs)
      : recomputed_(recomputed), drops_outputs_(drops_outputs)
  {
    bool continues = false;
    for (std::size_t which = 0; which < operators_of_block; ++which) {
      if (is_cut && which == operators_of_attention) continues = false;
      if (!of_block.has(which)) continue;
      if (recomputed.has(which)) of_[which] = continues ? count_ : ++count_;
      continues = recomputed.has(which);
    }
  }

  std::size_t count() const { return count_; }
  /// From 1; 0: it does not recompute.
  std::size_t of(BlockOperator which) const { return of_[static_cast<std::size_t>(which)]; }
  std::size_t of(const std::optional<BlockOperator>& maker) const { return maker ? of(*maker) : 0; }

  bool keeps(const BlockTensor& tensor) const
  {
    if (drops(tensor.maker)) return false;
    const std::size_t made_in = of(tensor.maker);
    const auto comes_from_outside = [&](BlockOperator user) { return of(user) != 0 && of(user) != made_in; };
    const auto saves = [&](BlockOperator saver) { return of(saver) == 0 || comes_from_outside(saver); };
    return std::ranges::any_of(tensor.savers, saves) || std::ranges::any_of(tensor.readers, comes_from_outside);
  }

  /// Whether a linear keeps a copy of its input: not where it makes the copy again, or reads what is dropped.
  bool keeps_copy(const TransformerLayer::Linear& linear) const
  {
    return !linear.of || (of(*linear.of) == 0 && !drops(maker_of_input(linear)));
  }

 private:
  static std::optional<BlockOperator> maker_of_input(const TransformerLayer::Linear& linear)
  {
    using enum BlockOperator;
    switch (*linear.of) {
      case Qkv:
        return Norm1;
      case Down:
        return Activation;
      case Up:
        return linear.is_grouped ? std::nullopt : std::optional(Norm2);  // what comes to experts
      case Router:
      case SharedExperts:
        return linear.shares_input ? std::optional(Norm2) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

  /// Framework::drops_recomputed_outputs
  bool drops(const std::optional<BlockOperator>& maker) const
  {
    using enum BlockOperator;
    if (!drops_outputs_ || !maker || !recomputed_.has(*maker)) return false;
    return *maker == Norm1 || *maker == QkvUp || *maker == Norm2 || *maker == Activation;
  }

  BlockOperators recomputed_;
  bool drops_outputs_;
  std::array<std::size_t, operators_of_block> of_ = {};
  std::size_t count_ = 0;
};

/// Of a layer of whose block some operators recompute.
LayerMemory partly_recomputed(const Workload& workload, std::size_t layer, const Framework& framework,
                              const LayerDivision& division, bool begins_stage)
{
  const BlockOfLayers block = block_of(workload, layer);
  const BlockOperators own = operators_of(workload, layer);
  BlockOperators of_block;
  BlockOperators recomputed;
  for (std::size_t each = block.first; each <= block.last; ++each) {
    const BlockOperators of_layer = operators_of(workload, each);
    BlockOperators again = recomputed_operators(workload, each);
    again &= of_layer;
    of_block |= of_layer;
    recomputed |= again;
  }
  const bool is_cut = begins_stage && layer != block.first;
  const Segments segments(recomputed, of_block, is_cut, framework.drops_recomputed_outputs);
  const auto tensors = tensors_of_block(workload, block, division, framework);
  const auto keeps = [&](const BlockTensor& tensor) { return segments.keeps(tensor); };
  const auto keeps_copy = [&](const TransformerLayer::Linear& linear) { return segments.keeps_copy(linear); };
  LayerMemory memory;
  memory.kept =
      bytes_of(tensors[layer - block.first], layer, workload, division, keeps) +
      change_by_recipe(transformer_layer(workload, layer, division.shards, framework), workload, division, keeps_copy);
  for (std::size_t which = 0; which < operators_of_block; ++which) {
    const std::size_t segment = segments.of(static_cast<BlockOperator>(which));
    if (!own.has(which) || segment == 0) continue;
    const auto is_made_again = [&](const BlockTensor& tensor) {
      return !tensor.savers.empty() && segments.of(tensor.maker) == segment && !segments.keeps(tensor);
    };
    Bytes again;  // what operators save that is not kept
    for (std::size_t each = block.first; each <= block.last; ++each) {
      again += bytes_of(tensors[each - block.first], each, workload, division, is_made_again);
    }
    memory.workspace = std::max(memory.workspace, again);
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
      const auto counts = [](const auto&) { return true; };
      const Bytes all = decoder == nullptr || !is_block
                            ? all_activations(layer_of, workload, division)
                            : bytes_of(tensors_of_decoder(*decoder, each, workload), each, workload, division, counts);
      return all + change_by_recipe(layer_of, workload, division, counts);
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

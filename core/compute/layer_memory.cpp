#include "core/compute/layer_memory.hpp"

#include "core/compute/transformer.hpp"

#include <algorithm>

namespace isobar::compute {

namespace {

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
  double divided = layer.tokens * (layer.kept_heads + (layer.is_gated ? 3 : 2) * layer.inner) * z;
  if (layer.attention == Attention::Unfused) divided += layer.scores * (z + mask * (1 + z));
  if (layer.attention == Attention::Fused && layer.scores > 0) {
    constexpr double sum_of_exponentials = 4;  // bytes of each token and head
    divided += sum_of_exponentials * numbers / layer.width;
  }
  return Bytes(repeated / (division.divides_sequence ? shards : 1) + divided / shards);
}

}  // namespace

LayerMemory layer_memory(const Workload& workload, std::size_t layer, const Framework& framework,
                         const LayerDivision& division, const SailorSizes* sizes, bool begins_stage)
{
  const auto all_of = [&](std::size_t each, const TransformerLayer& layer_of) {
    if (sizes == nullptr) return all_activations(layer_of, workload, division);
    return sizes->of_layer(workload, each, division.shards).activations * static_cast<double>(workload.micro_batch);
  };
  const auto of_layer = transformer_layer(workload, layer, division.shards, framework);
  const auto shards = static_cast<double>(division.shards);
  LayerMemory memory;
  if (!is_recomputed(workload, layer)) {
    memory.kept = all_of(layer, of_layer);
  } else {
    const auto [first, last] = block_of(workload, layer);
    bool repeats_block = true;
    for (std::size_t each = first; each <= last; ++each) repeats_block = repeats_block && is_recomputed(workload, each);
    const double input = of_layer.tokens * of_layer.hidden * size_of(workload.dtype);
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

ParameterBytes state_of(const Framework& framework, DType dtype)
{
  const auto& memory = framework.memory;
  const StateBytes& state = dtype == DType::Float32 ? memory.state32 : memory.state16;
  return {state.parameters * memory.reserved, state.gradients * memory.reserved, state.optimizer * memory.reserved,
          size_of(framework.gathered) * memory.reserved};
}

}  // namespace isobar::compute

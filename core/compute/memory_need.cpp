#include "core/compute/memory_need.hpp"

#include "core/compute/transformer.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

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

/// Bytes per parameter that a replica holds.
double held(const StateBytes& state, Sharding sharding, std::size_t replicas)
{
  const auto divided = [&](bool divides) { return divides ? static_cast<double>(replicas) : 1; };
  return state.parameters / divided(sharding == Sharding::Parameters) +
         state.gradients / divided(sharding >= Sharding::Gradients) +
         state.optimizer / divided(sharding >= Sharding::Optimizer);
}

}  // namespace

MemoryNeed memory_need(const Workload& workload, const Framework& framework, const StageMemory& stage,
                       const SailorSizes* sizes)
{
  ensure(stage.first_layer <= stage.last_layer && stage.last_layer < workload.layers.size(), "a stage of layers");
  const std::size_t shards = stage.division.shards;
  const auto& memory = framework.memory;
  const std::vector<SailorSize>* measured = sizes == nullptr ? nullptr : &sizes->of_shards(shards);
  const std::size_t last = workload.layers.size() - 1;
  // A block may be two layers of the workload, half of the measured one each.
  const bool has_halves = measured != nullptr && 2 * (measured->size() - 2) + 2 == workload.layers.size();
  if (measured != nullptr && !has_halves && measured->size() != workload.layers.size()) {
    throw InputError(sizes->name, fmt::format("has sizes of {} layers, and the workload has {}", measured->size(),
                                              workload.layers.size()));
  }
  const auto size_of_layer = [&](std::size_t layer) {
    if (!has_halves) return (*measured)[layer];
    if (layer == 0) return measured->front();
    if (layer == last) return measured->back();
    const SailorSize& block = (*measured)[(layer + 1) / 2];
    return SailorSize{block.parameters / 2, block.activations / 2};
  };
  double parameters = 0;
  double largest_layer = 0;  // in parameters
  Bytes activations;
  Bytes passing;  // while a pass runs
  for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
    const auto of_layer = transformer_layer(workload, layer, shards, framework);
    const double count =
        measured != nullptr ? size_of_layer(layer).parameters : parameters_of_shard(workload, layer, shards, framework);
    parameters += count;
    largest_layer = std::max(largest_layer, count);
    const Bytes all = measured != nullptr ? size_of_layer(layer).activations * static_cast<double>(workload.micro_batch)
                                          : all_activations(of_layer, workload, stage.division);
    const Bytes input(of_layer.tokens * of_layer.hidden * size_of(workload.dtype));
    const bool repeats = is_recomputed(workload, layer);
    activations += repeats ? std::min(all, input) : all;
    if (repeats) passing = std::max(passing, all);
    if (measured == nullptr) {
      const double logits = of_layer.tokens * of_layer.vocabulary / static_cast<double>(shards);
      passing = std::max(passing, Bytes(logits * memory.logit));
    }
  }
  const auto& state = workload.dtype == DType::Float32 ? memory.state32 : memory.state16;
  Bytes allocated(parameters * held(state, stage.sharding, stage.replicas));
  // Gathered parameters of the layer that runs, and of the next one.
  if (stage.sharding == Sharding::Parameters) allocated += Bytes(2 * largest_layer * size_of(framework.gathered));
  allocated += (activations * stage.in_flight + passing) * memory.activations;
  const Bytes reserved = allocated * memory.reserved;
  return {allocated, reserved, reserved + memory.context};
}

double interleaved_in_flight(std::size_t stage, std::size_t stages, std::size_t chunks, std::uint64_t microbatches)
{
  ensure(stage < stages && chunks > 1, "a stage of an interleaved pipeline");
  const std::uint64_t warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1;
  const std::uint64_t most = std::min(warm_up, microbatches * chunks);
  return static_cast<double>(most) / static_cast<double>(chunks);
}

}  // namespace isobar::compute

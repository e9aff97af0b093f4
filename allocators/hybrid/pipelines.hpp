#pragma once

#include "allocators/allocator.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Neighbouring layers of the chain and the devices that divide each of them.
struct PipelineStage {
  std::vector<std::size_t> devices;  ///< indices in the cluster
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive

  auto operator<=>(const PipelineStage&) const = default;
};

/// The whole chain, and the micro-batches of a step that pass through it.
struct Pipeline {
  std::uint64_t microbatches = 0;
  std::vector<PipelineStage> stages;

  auto operator<=>(const Pipeline&) const = default;
};

/// The stages of a plan in which each pipeline keeps its own cuts: they are cut wherever any pipeline is, and layers of
/// which any pipeline has several shards are a stage each. The layers between two cuts are divided into up to `parts`
/// stages. Replica i of each stage belongs to pipeline i. `cost` is of the workload whose chain `view` is.
/// O(pipelines x cuts of all x parts).
std::vector<Stage> stages_of(const std::vector<Pipeline>& pipelines, const ChainView& view, const CostModel& cost,
                             std::size_t parts = 1);

}  // namespace isobar::allocators

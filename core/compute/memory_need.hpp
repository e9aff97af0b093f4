#pragma once

#include "core/compute/framework.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/sailor_profile.hpp"
#include "core/model/workload.hpp"
#include "core/plan/sharding.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::compute {

/// A stage of a pipeline, as far as its memory depends on it.
struct StageMemory {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  LayerDivision division = {};
  std::size_t replicas = 1;
  Sharding sharding = Sharding::None;
  double in_flight = 1;  ///< micro-batches whose activations it holds at most
};

/// Memory of a device by three ways to count.
struct MemoryNeed {
  Bytes allocated;  ///< tensors
  Bytes reserved;   ///< held by the allocator
  Bytes device;     ///< in use on the device, with contexts and communication buffers
};

/// What the framework needs on the device of a stage: state of its parameters, activations of the micro-batches in
/// flight, and the larger of the logits of one micro-batch and the activations of a recomputed layer. Activations are
/// those of Korthikanti et al. 2022 (arXiv 2205.05198), for any dtype and dropout, or measured `sizes`; parameters
/// likewise.
/// O(layers of the stage).
/// @throws InputError as layer_time does, and when `sizes` has other layers or degrees.
MemoryNeed memory_need(const Workload& workload, const Framework& framework, const StageMemory& stage,
                       const SailorSizes* sizes = nullptr);

/// The most micro-batches whose activations a stage holds at once under the interleaved schedule of Megatron, as those
/// of all its layers: on the first stage of P, with v chunks, P (1 + (P - 1) / (P v)).
double interleaved_in_flight(std::size_t stage, std::size_t stages, std::size_t chunks, std::uint64_t microbatches);

}  // namespace isobar::compute

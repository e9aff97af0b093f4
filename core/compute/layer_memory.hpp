#pragma once

#include "core/compute/layer_time.hpp"
#include "core/compute/sailor_profile.hpp"
#include "core/model/framework.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar::compute {

/// What training software allocates for a layer on each of equal shards, for a micro-batch.
struct LayerMemory {
  Bytes kept;       ///< from the forward pass until the backward pass
  Bytes workspace;  ///< while one of its passes runs: what is recomputed, or logits
};

/// Activations are those of Korthikanti et al. 2022 (arXiv 2205.05198), for any dtype and dropout, or measured `sizes`.
/// Of a block whose layers are all recomputed, the first one keeps the input, or the one with which a stage begins
/// (`begins_stage`); while it is recomputed, all of it is there. O(1).
/// @throws InputError as layer_time does, and when `sizes` has other layers or degrees.
LayerMemory layer_memory(const Workload& workload, std::size_t layer, const Framework& framework,
                         const LayerDivision& division = {}, const SailorSizes* sizes = nullptr,
                         bool begins_stage = false);

/// What the allocator of the software's devices holds for each parameter. By a recipe of products it has copies of
/// weights in fewer bits, too: by the part of all parameters that are such weights. O(layers).
ParameterBytes state_of(const Framework& framework, const Workload& workload);

}  // namespace isobar::compute

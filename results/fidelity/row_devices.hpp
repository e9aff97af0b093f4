#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/sharding.hpp"
#include "results/fidelity/measured_row.hpp"

#include <cstddef>
#include <vector>

namespace isobar::results {

/// The stages of a row's pipeline, their degrees and blocks.
struct RowDegrees {
  std::vector<std::size_t> tensor;  ///< by stage
  std::vector<std::size_t> data;    ///< likewise
  std::vector<double> blocks;       ///< by stage, then of the next chunks
  /// By block, of a row with a plan of Aceso; empty: as the row says.
  std::vector<BlockOperators> recomputed;
};

/// Of a model of `blocks`. Without the column `layers`, the first chunks have one more where they do not divide evenly.
/// @throws Unsupported as read_aceso_plan does.
RowDegrees degrees_of(const MeasuredRow& row, double blocks, std::size_t virtual_stages);

/// The last layer before a cut after `blocks` blocks, whose last layers are `ends`. A cut inside of a block goes to the
/// nearest of its parts.
std::size_t layer_before(const std::vector<std::size_t>& ends, double blocks);

/// Groups that divide experts as a row says: its degree counts devices where shards have whole experts.
/// @throws Unsupported for a degree that is no multiple of the shards then.
ExpertParallelism experts_of(const MeasuredRow& row, std::size_t shards);

/// Devices of a stage of the pipeline, by replica and shard.
using DevicesOfStage = std::vector<std::vector<const Device*>>;

/// The devices that the column `devices` names, or else the next ones of the platform; in `devices`, each once.
/// @throws Unsupported where they are too few, or do not go with the degrees.
std::vector<DevicesOfStage> devices_of_row(const MeasuredRow& row, const RowDegrees& degrees,
                                           const std::vector<Device>& devices);

}  // namespace isobar::results

#pragma once

#include "core/model/framework.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

/// Measured layers as Sailor's profiler writes them (Strati et al., Sailor, SOSP 2025): embedding, blocks, head.
namespace isobar::compute {

/// Collectives among the layer's shards are inside these times.
struct SailorTimes {
  Seconds forward;
  Seconds backward;
};
struct SailorRun {
  std::vector<SailorTimes> layers;
  Seconds update;  ///< of all layers together

  /// The block that all blocks repeat.
  const SailorTimes& block() const { return layers[1]; }
};
/// Times of layers: [micro_batch][tensor_parallel][layer] = [forward_s, backward_s, update_s].
struct SailorProfile {
  std::string name;                                                  ///< of the file, for messages
  std::map<std::uint64_t, std::map<std::uint64_t, SailorRun>> runs;  ///< by micro-batch and number of shards

  /// @throws InputError that lists what was measured.
  const SailorRun& run(std::uint64_t micro_batch, std::uint64_t shards) const;
};
/// Parses a profile; `name` stands for the file in messages. All blocks take the times of the second one, since the
/// first one's are those of a first call.
/// @throws InputError naming file, line and key of every fault.
SailorProfile sailor_profile_from_json(const std::string& text, const std::string& name);

/// A run as training shows it, where the host does not wait for the profiler's clock.
///
/// A pass takes no longer than with more samples. A block whose time grows by less than a third when the micro-batch
/// doubles waits for the host: it takes the time in which the framework's host issues it, but no less than half of the
/// time at twice the micro-batch, and no more than measured.
/// @throws InputError as SailorProfile::run does.
SailorRun in_training(const SailorProfile& profile, std::uint64_t micro_batch, std::uint64_t shards,
                      const Framework& framework);

/// What a layer of the workload takes in a run of the profile. Its block may be several layers, of which each takes as
/// long. @throws InputError when the profile has other layers.
SailorTimes times_of_layer(const SailorProfile& profile, const SailorRun& run, const Workload& workload,
                           std::size_t layer);

/// Sizes of a layer on one shard, for one sample.
struct SailorSize {
  double parameters = 0;
  Bytes activations;  ///< kept for the backward pass
};
/// Sizes of layers: [tensor_parallel][layer].
struct SailorSizes {
  std::string name;                                         ///< of the file, for messages
  std::map<std::uint64_t, std::vector<SailorSize>> layers;  ///< by number of shards

  /// @throws InputError that lists what was measured.
  const std::vector<SailorSize>& of_shards(std::uint64_t shards) const;
  /// That of a layer of the workload, whose block may be several layers. @throws InputError likewise, and for a
  /// workload with other layers.
  SailorSize of_layer(const Workload& workload, std::size_t layer, std::uint64_t shards) const;
};
/// Parses sizes; `name` stands for the file in messages. @throws InputError naming file, line and key of every fault.
SailorSizes sailor_sizes_from_json(const std::string& text, const std::string& name);
/// Reads a file of sizes. @throws InputError as sailor_sizes_from_json does.
SailorSizes read_sailor_sizes(const std::filesystem::path& file);

}  // namespace isobar::compute

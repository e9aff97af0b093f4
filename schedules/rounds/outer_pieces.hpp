#pragma once

#include "core/model/workload.hpp"
#include "core/outer/outer.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::schedules {

/// That no other rank of a worker has the same parameters.
inline constexpr std::size_t no_gather = static_cast<std::size_t>(-1);

/// Parameters that one rank of each worker updates for its worker.
struct OuterPiece {
  std::vector<std::size_t> ranks;     ///< by worker: its rank (devices_of) of the worker's own plan
  std::vector<std::size_t> gathers;   ///< by worker: the OuterGather by which other ranks of it take them; or no_gather
  std::vector<std::uint64_t> values;  ///< by fragment

  bool operator==(const OuterPiece&) const = default;
};

/// Ranks of a worker that have the same parameters, of which each updates a part: they gather the others' parts.
struct OuterGather {
  std::size_t worker = 0;
  std::vector<std::size_t> ranks;  ///< of the worker's own plan
};

/// Who updates what in the rounds of some workers.
struct OuterDivision {
  std::vector<OuterPiece> pieces;  ///< in the order of their first values
  std::vector<OuterGather> gathers;
};

/// Divides the parameters of a workload among the ranks of each worker. Of a layer, each shard of a replica has the
/// values of its share, and each replica updates as many of them, one range after the other; what all shards have is
/// divided like the rest. A layer's values are those of the workload, in the order of its parameters.
/// O(layers x ranks of a layer of all workers).
OuterDivision divide_outer(const std::vector<OuterWorker>& workers, const Workload& workload, std::uint64_t fragments);

}  // namespace isobar::schedules

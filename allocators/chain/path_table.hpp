#pragma once

#include "core/costs/cost_model.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace isobar::allocators {

/// Transfer time as an affine function of the bytes.
struct AffinePath {
  double latency;   // seconds
  double per_byte;  // seconds per byte

  double time(double bytes) const { return latency + bytes * per_byte; }
};

inline AffinePath affine_path(const Path& path)
{
  return {path.latency.value, 1 / path.bandwidth.value};
}

/// Paths between all pairs of devices in one flat table. A row is filled at its first use: a search that stays on a few
/// devices of thousands looks up only their routes on the platform. 16 D² bytes of address space.
class PathTable {
 public:
  /// Paths as the communication counts them (counted_path).
  PathTable(const CostModel& cost, Communication communication)
      : cluster_(&cost.cluster()),
        communication_(communication),
        devices_(cost.devices()),
        paths_(std::make_unique_for_overwrite<AffinePath[]>(devices_ * devices_)),
        has_row_(devices_)
  {
  }

  const AffinePath& between(std::size_t from, std::size_t to)
  {
    if (!has_row_[from]) fill(from);
    return paths_[from * devices_ + to];
  }

 private:
  void fill(std::size_t from)
  {
    for (std::size_t to = 0; to < devices_; ++to) {
      if (to == from) continue;
      paths_[from * devices_ + to] = affine_path(counted_path(communication_, cluster_->path(from, to)));
    }
    has_row_[from] = 1;
  }

  const Cluster* cluster_;
  Communication communication_;
  std::size_t devices_;
  std::unique_ptr<AffinePath[]> paths_;
  std::vector<unsigned char> has_row_;
};

}  // namespace isobar::allocators

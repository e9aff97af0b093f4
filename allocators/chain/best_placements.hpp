#pragma once

#include "core/costs/cost_model.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// The best few placements that a search offers, without duplicates, best first.
class BestPlacements {
 public:
  /// Keeps at most `most` placements.
  explicit BestPlacements(std::size_t most) : most_(most) {}

  /// Keeps the placement if it is among the best so far. Equal values stay in the order in which they were offered.
  void offer(const std::vector<StagePlacement>& stages, double value);

  /// Returns all placements except `stages`; at most one fewer than are kept.
  std::vector<std::vector<StagePlacement>> without(const std::vector<StagePlacement>& stages) const;

 private:
  struct Kept {
    std::vector<StagePlacement> stages;
    double value;
  };

  std::size_t most_;
  std::vector<Kept> kept_;
};

}  // namespace isobar::allocators

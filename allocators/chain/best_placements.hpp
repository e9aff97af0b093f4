#pragma once

#include "core/plan/cost_model.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// The few best of the placements that a search offers, each once, best first.
class BestPlacements {
 public:
  /// Keeps `most` of them.
  explicit BestPlacements(std::size_t most) : most_(most) {}

  /// Keeps the placement if it is among the best so far. Of equal values the one offered first comes first.
  void offer(const std::vector<StagePlacement>& stages, double value);

  /// All but `stages`, which is given elsewhere; at most one less than are kept.
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

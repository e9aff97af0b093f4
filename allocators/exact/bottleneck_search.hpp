#pragma once

#include "allocators/exact/exact_progress.hpp"
#include "allocators/exact/multipliers.hpp"
#include "allocators/exact/path_relaxation.hpp"
#include "allocators/exact/phase_flow.hpp"
#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <functional>
#include <optional>

namespace isobar::allocators {

/// Proof and search for objectives that count only the largest cost (beta = 0): it refutes ever larger limits and finds
/// ever better placements until they meet.
class BottleneckSearch {
 public:
  /// `repetition`: set only for a chain that repeats, with hereditary memory and no transfers. Keeps references.
  BottleneckSearch(ExactProgress& progress, const StageTables& tables, const std::optional<Repetition>& repetition);

  /// Raises the bound as far as potentials or multipliers do, without a search.
  void bound();
  /// Searches by phases where the chain repeats, else by multipliers and labels, until the bound is met or the limits
  /// are spent. @throws OutOfLimits
  void search();

 private:
  bool search_phases();
  void search_labels();
  void narrow(PathRelaxation& relaxation, Multipliers& multipliers, double open, double width, std::size_t steps);
  void prove_by_potentials(const PhaseFlow& flow, double limit);
  void prove_by_multipliers(const Multipliers& multipliers, double limit);

  ExactProgress& progress_;
  const StageTables& tables_;
  std::optional<Repetition> repetition_;
  const std::function<void()>& check_;
  const FoundPlacement& best_;
};

}  // namespace isobar::allocators

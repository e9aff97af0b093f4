#pragma once

#include "allocators/exact/exact_progress.hpp"
#include "allocators/exact/ladder.hpp"
#include "allocators/exact/multipliers.hpp"
#include "allocators/exact/path_relaxation.hpp"
#include "allocators/exact/phase_flow.hpp"
#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <functional>
#include <optional>

namespace isobar::allocators {

/// Proof and search for objectives that count a sum (beta = 1). A ladder of limits on the largest cost is priced by the
/// potentials of a phase flow, or by multipliers. Its rungs are searched by beams of labels.
class SumSearch {
 public:
  /// `repetition`: set only for a chain that repeats, with hereditary memory and no transfers. Keeps references.
  SumSearch(ExactProgress& progress, const StageTables& tables, const std::optional<Repetition>& repetition);

  /// Raises the bound as far as potentials or multipliers do, without a search of the rungs.
  void bound();
  /// Searches until the bound is met or the limits are spent. @throws OutOfLimits
  void search();

 private:
  std::optional<Ladder::Rung> floor();
  void begin(const std::optional<Ladder::Rung>& lowest, double effort);
  void price(Ladder::Rung& rung, double effort);
  void price_well(std::size_t index);
  void refine(std::size_t most_rounds);
  void conclude();
  void solve_flow(const Ladder::Rung& rung, std::size_t states);
  void search_rung(std::size_t index, std::size_t width);

  ExactProgress& progress_;
  const StageTables& tables_;
  const CostModel& cost_;
  const std::function<void()>& check_;
  const FoundPlacement& best_;
  double alpha_;
  Ladder ladder_;
  bool repeats_;
  PathRelaxation relaxation_;
  std::optional<PhaseFlow> flow_;
  std::optional<Multipliers> nearest_multipliers_;
};

}  // namespace isobar::allocators

#pragma once

#include "allocators/bounds/bounds.hpp"
#include "allocators/exact/ladder.hpp"
#include "allocators/exact/multipliers.hpp"
#include "allocators/exact/path_relaxation.hpp"
#include "allocators/exact/phase_flow.hpp"
#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// A lower bound on the step over all placements under the goal's schedule, refined piece by piece.
///
/// step >= P + (M-1) x the largest turn. P is the time of one micro-batch alone, down the chain and back; a turn is
/// what every further micro-batch adds to a stage or a lane (docs/certificates.md). A ladder of limits on the turns
/// (ladder.hpp) is priced by multipliers over the path relaxation. With one micro-batch at a time there are no turns,
/// and one rung.
///
/// Deterministic. A refinement takes some tens of passes over the cuts (path_relaxation.hpp): about 0.1 s for 64
/// devices and 483 layers.
class StepBound {
 public:
  /// `check` is called regularly and may throw. Keeps a reference to the cost model.
  StepBound(const CostModel& cost, const Goal& goal, std::function<void()> check);

  /// Sets the step of a known placement, below which the bound stays, and the largest compute time of its stages.
  void set_incumbent(double step, double largest_compute);

  /// Makes the first rungs: one up to a limit on turns that no placement meets, if there is such a limit, and one above
  /// it. An `effort` of 1 is 25 passes over the cuts, four times that without transfers.
  void begin(double effort);
  /// Cuts or prices the weakest rung. Once rungs cannot be refined further, it distinguishes turns by the stages after
  /// a stage and continues. False when nothing is left to do, or the bound meets the known step.
  bool refine();

  /// The proven bound in seconds; infinite where no placement exists.
  double value() const { return bound_; }
  const Certificate& certificate() const { return certificate_; }

  const StageTables& tables() const { return *tables_; }
  const Ladder& ladder() const { return ladder_; }

 private:
  std::optional<Ladder::Rung> floor();
  bool refine_on_level();
  bool distinguish_levels();
  void price(Ladder::Rung& rung, double effort);
  void price_with_slots(Ladder::Rung& rung);
  void price_well(std::size_t index);
  void conclude();

  const CostModel& cost_;
  Goal goal_;
  std::function<void()> check_;
  std::unique_ptr<StageTables> tables_;
  std::unique_ptr<PathRelaxation> relaxation_;
  Ladder ladder_;
  std::optional<PhaseFlow> flow_;  // where the chain repeats and there are no transfers
  std::optional<Multipliers> nearest_;
  double step_;
  double largest_compute_;
  double bound_ = 0;
  Certificate certificate_;
};

/// Computes a quick bound on the step for a plan of any allocator: StepBound with a few refinements. `known` is any
/// placement, used if it fits in memory, or empty. About 0.2 s at 64 devices and 483 layers.
Bound quick_step_bound(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known);

}  // namespace isobar::allocators

#pragma once

#include "allocators/exact/path_relaxation.hpp"
#include "core/plan/step_recurrence.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace isobar::allocators {

/// Looks for a placement with a smaller step by going through all, depth first from the end of the chain, where the
/// order of a stage's work is known by the stages behind it. A suffix of stages is left where no way to go on can end
/// below the best step:
/// - what its stages take when all micro-batches wait before them (they never wait less), and what the layers before
///   take one micro-batch, as the relaxation and its multipliers tell of the devices that are left;
/// - what one micro-batch takes in all, and the largest turn: that of the layers before on these devices together, or
///   what it is above by assumption.
/// Complete placements count by the recurrence. Devices of a kind are alike. Some 2 us a suffix; there may be
/// exponentially many.
class StepTree {
 public:
  /// The relaxation, solved with `multipliers` (by kind). `check` may throw. Keeps references.
  StepTree(const PathRelaxation& relaxation, const std::vector<double>& multipliers, std::function<void()> check);

  struct Answer {
    std::vector<StagePlacement> stages;  ///< the best below the ceiling; empty where there is none
    bool is_exhaustive = true;           ///< there is no better one
    std::uint64_t steps = 0;             ///< as the checker of certificates counts them
  };
  /// A placement with a step below `ceiling`, among those whose largest turn is above `from` and within the
  /// relaxation's limit. Ends when it took `most` steps.
  Answer run(double ceiling, double from, std::uint64_t most);

 private:
  void extend(std::size_t end);
  void put_before(std::size_t kind, std::size_t device, std::size_t end);
  bool may_go_on(std::size_t kind, std::size_t first, double compute, double sent);
  void finish();
  double played_suffix();
  void take(std::uint64_t steps);

  const StageTables& tables_;
  const PathRelaxation& relaxation_;
  const std::vector<double>& multipliers_;
  std::function<void()> check_;
  const CostModel& cost_;
  Goal goal_;
  double turns_;  // of the largest compute
  StepRecurrence recurrence_;

  std::vector<StagePlacement> suffix_;  // last stage first
  std::vector<StageTimes> times_;       // likewise; transfers to the stage behind
  std::vector<StageTimes> in_order_;    // scratch
  std::vector<bool> used_;
  double sum_ = 0;  // one micro-batch in the stages of the suffix but the first, with what is between them
  double unused_multipliers_ = 0;
  double unused_speed_ = 0;
  double ceiling_ = 0;
  double largest_turn_ = 0;  // what it adds to a step at least
  std::uint64_t most_ = 0;
  std::uint64_t seen_ = 0;
  Answer answer_;
};

}  // namespace isobar::allocators

#pragma once

#include "allocators/exact/path_relaxation.hpp"
#include "core/costs/step_recurrence.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace isobar::allocators {

/// Searches all placements for a smaller step, depth first. It begins at the end of the chain, because the stages after
/// a stage determine the order of its work.
///
/// A suffix of stages is pruned when one of these bounds is not below the best step:
/// - the time of its stages if all micro-batches were available to them at once (they are never available earlier),
///   plus the time of one micro-batch in the layers before, by the relaxation and the multipliers of the unused
///   devices;
/// - the time of one micro-batch in total, plus the largest turn: that of the layers before on the unused devices
///   together, or the value that it exceeds by assumption.
///
/// Complete placements are valued by the recurrence. Devices of a kind are interchangeable. About 2 us a suffix; there
/// may be exponentially many.
class StepTree {
 public:
  /// The relaxation, solved with `multipliers` (by kind). `check` may throw. Keeps references.
  StepTree(const PathRelaxation& relaxation, const std::vector<double>& multipliers, std::function<void()> check);

  struct Answer {
    std::vector<StagePlacement> stages;  ///< the best below the ceiling; empty where there is none
    bool is_exhaustive = true;           ///< no better placement exists
    std::uint64_t steps = 0;             ///< as the checker of certificates counts them
  };
  /// Searches for the least step below `ceiling`, among placements whose largest turn is above `from` and within the
  /// relaxation's limit. Ends after `most` steps.
  Answer run(double ceiling, double from, std::uint64_t most);

 private:
  void extend(std::size_t end);
  void put_before(std::size_t kind, std::size_t device, std::size_t end);
  bool may_continue(std::size_t kind, std::size_t first, double compute, double sent);
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
  std::vector<StageTimes> times_;       // likewise; transfers to the stage after
  std::vector<StageTimes> in_order_;    // scratch
  std::vector<bool> used_;
  double sum_ = 0;  // one micro-batch in the stages of the suffix except the first, and between them
  double unused_multipliers_ = 0;
  double unused_speed_ = 0;
  double ceiling_ = 0;
  double largest_turn_ = 0;  // what it adds to a step at least
  std::uint64_t most_ = 0;
  std::uint64_t seen_ = 0;
  Answer answer_;
};

}  // namespace isobar::allocators

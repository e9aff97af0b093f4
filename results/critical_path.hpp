#pragma once

#include "core/plan/plan.hpp"
#include "core/plan/step_recurrence.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <vector>

namespace isobar::results {

/// What a step waits for: the chain of work and transfers, each beginning when the one before ends, that reaches from
/// its begin to its end. Everything on it sums to the time of the step. Seconds per step.
struct CriticalPath {
  /// Of the transfers of one lane.
  struct Lane {
    Seconds data;     ///< while bytes occupy the lane
    Seconds latency;  ///< of transfers that no earlier one delayed
  };
  /// Of one stage.
  struct Stage {
    Seconds compute;  ///< forwards, backwards and update
    Lane output;      ///< activations to the next stage
    Lane gradient;    ///< gradients back from the next stage
    /// How often the path passes from a backward to a forward whose activations had arrived while the device waited
    /// for that backward's gradients: with more micro-batches in flight the device would have worked meanwhile.
    std::uint64_t waits_for_room = 0;
    /// How long the device was idle so in the whole step, also off the path.
    Seconds idle_for_room;
  };

  Seconds step_time;
  Lane input;
  std::vector<Stage> stages;
};

/// Stages that hold one micro-batch more than `1f1b` lets them: the first `count`.
struct MoreInFlight {
  std::size_t count = 0;
};

/// Plays a step by a loop of its own, apart from StepRecurrence, and walks back from its end. Where two things end at
/// once, the device's own work counts as what was waited for. Other schedules than 1f1b take no more in flight, and
/// what more needs in memory is not checked. O(S M) time and memory.
CriticalPath critical_path(Schedule schedule, std::uint64_t microbatches, TransferTimes input,
                           const std::vector<StageTimes>& stages, MoreInFlight more = {});

}  // namespace isobar::results

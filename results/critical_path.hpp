#pragma once

#include "core/costs/step_recurrence.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <vector>

namespace isobar::results {

/// Critical path of a step: the chain of work and transfers from its start to its end, each of which starts when the
/// one before ends. All parts sum to the step time. Seconds per step.
struct CriticalPath {
  /// Transfers of one lane.
  struct Lane {
    Seconds data;     ///< while bytes occupy the lane
    Seconds latency;  ///< of transfers that no earlier one delayed
  };
  /// Work and transfers of one stage.
  struct Stage {
    Seconds compute;  ///< forwards, backwards and update
    Lane output;      ///< activations to the next stage
    Lane gradient;    ///< gradients back from the next stage
    /// Number of times that the path goes from a backward to a forward whose activations arrived while the device
    /// waited for that backward's gradients. With more micro-batches in flight, the device would have worked meanwhile.
    std::uint64_t waits_for_room = 0;
    /// Time that the device was idle for this cause in the whole step, also off the path.
    Seconds idle_for_room;
  };

  Seconds step_time;
  Lane input;
  std::vector<Stage> stages;
};

/// Lets the first `count` stages hold one micro-batch more than `1f1b` allows.
struct MoreInFlight {
  std::size_t count = 0;
};

/// Plays a step and walks back from its end. The loop is independent of StepRecurrence, so that tests can compare the
/// two. Where two predecessors end at the same time, the device's own work is on the path. `more` applies only to 1f1b;
/// its memory is not checked. O(S M) time and memory for S stages and M micro-batches.
CriticalPath critical_path(ChainSchedule schedule, std::uint64_t microbatches, TransferTimes input,
                           const std::vector<StageTimes>& stages, MoreInFlight more = {});

}  // namespace isobar::results

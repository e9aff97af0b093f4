#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar {

/// The times of one stage: forward, backward and transfers per micro-batch, the update once per step.
struct StageTimes {
  Seconds forward;
  Seconds backward;
  Seconds update;
  TransferTimes output = {};    ///< activations to the next stage; unused for the last stage
  TransferTimes gradient = {};  ///< gradients back from the next stage; unused for the last stage
};

/// Computes the time of one step as the simulator plays it if no two transfers share a link.
///
/// Each lane works in order. A transfer occupies its lane while its bytes leave, and arrives a latency later: message
/// k, ready at r_k, arrives at A_k = max(r_k + latency, A_{k-1}) + data (docs/costs.md).
///
/// With W_i warm-up forwards (sequential 0, gpipe M, 1f1b min(M, S-1-i)), stage i forwards micro-batch W_i + n and then
/// does the n-th backward. Rounds n = 0 … M-1 go over all stages, forwards from first to last and backwards from last
/// to first, so every time that an operation waits for is already known.
///
/// O(S M) time, O(S + M) memory; no allocation from the second call on. Deterministic. An object serves one thread at a
/// time.
class StepRecurrence {
 public:
  StepRecurrence(ChainSchedule schedule, std::uint64_t microbatches) : schedule_(schedule), microbatches_(microbatches)
  {
  }

  /// The time of a step of `stages`, in chain order. `input` transfers each micro-batch's data to the first stage;
  /// zeros without a data server. @throws std::logic_error without stages.
  Seconds step_time(TransferTimes input, const std::vector<StageTimes>& stages);
  /// When a stage has ended its last backward in the step of the last call.
  Seconds end_of_passes(std::size_t stage) const { return Seconds(states_.at(stage).free); }

 private:
  struct StageState {
    std::uint64_t warm_up = 0;
    double free = 0;              // end of the compute lane's last operation
    double output_arrival = 0;    // of the last activations at the next stage
    double gradient_arrival = 0;  // of the last gradients from the next stage
    double arrived[2] = {};       // activations of the micro-batch of this parity, from the stage before
  };

  std::uint64_t warm_up_of(std::size_t stage, std::size_t stages) const;
  double next_input_arrival(std::uint64_t microbatch, TransferTimes input);
  /// Forwards a micro-batch whose activations arrive at `arrival`; returns when the next stage has its output.
  double forward(StageState& state, const StageTimes& times, double arrival);
  void warm_up(TransferTimes input, const std::vector<StageTimes>& stages);

  ChainSchedule schedule_;
  std::uint64_t microbatches_;
  std::vector<StageState> states_;
  std::vector<double> arrivals_;  // during warm-up: of each micro-batch at the current stage
  double input_arrival_ = 0;
  double forward_end_[2] = {};  // of the first stage's last two, by parity
};

/// The input of the recurrence: the transfer of a micro-batch's data, and the times of the stages.
struct StepTimes {
  TransferTimes input;
  std::vector<StageTimes> stages;
};

/// The times of a placement; transfers are zeros if they are free (Goal::has_free_transfers).
/// @throws std::logic_error without stages.
StepTimes step_times(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal);

/// The time of a step of a placement by the recurrence (see Goal::has_free_transfers).
/// @throws std::logic_error without stages.
Seconds step_time_by_recurrence(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal);

}  // namespace isobar

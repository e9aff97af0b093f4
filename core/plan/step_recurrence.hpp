#pragma once

#include "core/plan/cost_model.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar {

/// What one stage takes for one micro-batch, and once for its update.
struct StageTimes {
  Seconds forward;
  Seconds backward;
  Seconds update;
  TransferTimes output = {};    ///< activations to the next stage; of the last stage not used
  TransferTimes gradient = {};  ///< gradients back from the next stage; of the last stage not used
};

/// The time of one step as the simulator plays it where no two transfers share a link. Lanes work in order. A transfer
/// occupies its lane while its bytes leave and arrives a latency later: message k, ready at r_k, arrives at
/// A_k = max(r_k + latency, A_{k-1}) + data (docs/costs.md).
///
/// With W_i forwards to warm up (sequential 0, gpipe M, 1f1b min(M, S-1-i)), stage i forwards micro-batch W_i + n and
/// then takes back the n-th: rounds n = 0 … M-1 over all stages, forwards from the first to the last and backwards from
/// the last to the first, find every time that they wait for known already. O(S M) time, O(S + M) memory; no
/// allocation from the second call on. Overflow apart it cannot fail.
class StepRecurrence {
 public:
  StepRecurrence(Schedule schedule, std::uint64_t microbatches) : schedule_(schedule), microbatches_(microbatches) {}

  /// `input`: of each micro-batch's data to the first stage; zeros where there is no data server.
  Seconds step_time(TransferTimes input, const std::vector<StageTimes>& stages);

 private:
  struct StageState {
    std::uint64_t warm_up = 0;
    double free = 0;              // end of what the compute lane did last
    double output_arrival = 0;    // of the last activations at the next stage
    double gradient_arrival = 0;  // of the last gradients from the next stage
    double arrived[2] = {};       // activations of the micro-batch of this parity, from the stage before
  };

  std::uint64_t warm_up_of(std::size_t stage, std::size_t stages) const;
  double next_input_arrival(std::uint64_t microbatch, TransferTimes input);
  /// Forwards a micro-batch whose activations arrive then; returns when the next stage has them.
  double forward(StageState& state, const StageTimes& times, double arrival);
  void warm_up(TransferTimes input, const std::vector<StageTimes>& stages);

  Schedule schedule_;
  std::uint64_t microbatches_;
  std::vector<StageState> states_;
  std::vector<double> arrivals_;  // while the stages warm up, of each micro-batch at the stage in question
  double input_arrival_ = 0;
  double forward_end_[2] = {};  // of the first stage's last two, by parity
};

/// What the recurrence plays: the stages' times, and the input of a micro-batch before them.
struct StepTimes {
  TransferTimes input;
  std::vector<StageTimes> stages;
};

/// Of a placement; transfers are zeros where they are free (Goal::has_free_transfers).
StepTimes step_times(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal);

/// The recurrence over a placement (see Goal::has_free_transfers).
/// @throws std::logic_error for an empty one.
Seconds step_time_by_recurrence(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal);

}  // namespace isobar

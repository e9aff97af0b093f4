#pragma once

#include "core/plan/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// What one stage takes for a micro-batch and for its update, and what the two transfers over the cut behind it take;
/// those of the last stage are not used. Seconds; one cache line.
struct alignas(64) StepTerms {
  double forward = 0;
  double backward = 0;
  double update = 0;
  double output_latency = 0;
  double output_data = 0;
  double gradient_latency = 0;
  double gradient_data = 0;
};

/// The recurrence of core/plan/step_recurrence.hpp for inner loops: the same step to 1e-12 relative.
///
/// A stage whose forwards all come before its first backward (every one under gpipe, all but the last M under 1f1b)
/// goes through its micro-batches in one loop forward and one back: what one stage waits for and what the next one does
/// overlap in the processor. Only the last M stages of 1f1b take turns, one round a micro-batch. Under `sequential` a
/// step is M times one micro-batch, but for the input that is fetched meanwhile: O(S + M). Else O(S M); memory O(S +
/// M), none allocated once the largest S was seen.
class StepClock {
 public:
  StepClock(Schedule schedule, std::uint64_t microbatches);

  /// `input`: of each micro-batch's data to the first stage. `stages` is not empty.
  double step_time(TransferTimes input, const std::vector<StepTerms>& stages);

 private:
  struct Lanes {
    double free = 0;              // end of what the compute lane did last
    double output_arrival = 0;    // of the last activations at the next stage
    double gradient_arrival = 0;  // of the last gradients from the next stage
    double arrived = 0;           // the activations that it forwards next
  };

  double sequential_step(TransferTimes input, const std::vector<StepTerms>& stages);
  double next_input(TransferTimes input);
  void forward_first(TransferTimes input, const StepTerms& terms, std::size_t count);
  void forward_through(const StepTerms& terms, std::size_t stage, std::size_t count);
  void take_turns(TransferTimes input, const std::vector<StepTerms>& stages, std::size_t head);

  Schedule schedule_;
  std::size_t microbatches_;
  std::vector<Lanes> lanes_;
  std::vector<double> arrivals_;  // of each micro-batch at the stage in question
  double input_arrival_ = 0;
  double last_end_ = 0;          // of the first stage's forward before
  double last_but_one_end_ = 0;  // and of the one before that
};

}  // namespace isobar::allocators

#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Times of one stage for a micro-batch and for its update, and of the two transfers over the cut after it, which are
/// unused for the last stage. Seconds; one cache line.
struct alignas(64) StepTerms {
  double forward = 0;
  double backward = 0;
  double update = 0;
  double output_latency = 0;
  double output_data = 0;
  double gradient_latency = 0;
  double gradient_data = 0;
};

/// The recurrence of core/costs/step_recurrence.hpp for inner loops: the same step to 1e-12 relative.
///
/// A stage whose forwards all come before its first backward handles its micro-batches in one loop forward and one
/// back, so that the processor overlaps the waits of one stage with the work of the next. That is every stage under
/// gpipe, and all except the last M under 1f1b. The last M stages of 1f1b alternate, one round per micro-batch. Under
/// `sequential` a step is M times one micro-batch, except for the input that is fetched meanwhile: O(S + M). Otherwise
/// O(S M). O(S + M) memory; allocates only when S grows.
class StepClock {
 public:
  StepClock(ChainSchedule schedule, std::uint64_t microbatches);

  /// Returns the step in seconds. `input`: transfer of each micro-batch's data to the first stage. Requires a stage.
  double step_time(TransferTimes input, const std::vector<StepTerms>& stages);

 private:
  struct Lanes {
    double free = 0;              // end of the compute lane's last work
    double output_arrival = 0;    // of the last activations at the next stage
    double gradient_arrival = 0;  // of the last gradients from the next stage
    double arrived = 0;           // the activations that it forwards next
  };

  double sequential_step(TransferTimes input, const std::vector<StepTerms>& stages);
  double next_input(TransferTimes input);
  void forward_first(TransferTimes input, const StepTerms& terms, std::size_t count);
  void forward_through(const StepTerms& terms, std::size_t stage, std::size_t count);
  void take_turns(TransferTimes input, const std::vector<StepTerms>& stages, std::size_t head);

  ChainSchedule schedule_;
  std::size_t microbatches_;
  std::vector<Lanes> lanes_;
  std::vector<double> arrivals_;  // of each micro-batch at the current stage
  double input_arrival_ = 0;
  double last_end_ = 0;          // of the first stage's previous forward
  double last_but_one_end_ = 0;  // of the one before that
};

}  // namespace isobar::allocators

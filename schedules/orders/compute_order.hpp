#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace isobar::schedules {

/// The order in which the stages of a pipeline work on M micro-batches. Schedules differ only in it.
///
/// Every stage forwards micro-batches 0, 1, … M-1. All stages share one order of backwards, so that the sends of a
/// stage match the receives of its neighbour. Positions count the forwards and backwards of a stage from 0. Each
/// function takes O(1).
class ComputeOrder {
 public:
  struct Step {
    bool is_forward = true;
    std::uint64_t microbatch = 0;
  };

  ComputeOrder() = default;
  ComputeOrder(const ComputeOrder&) = delete;
  ComputeOrder& operator=(const ComputeOrder&) = delete;
  virtual ~ComputeOrder() = default;

  /// What a stage does at `position` (0..2M-1).
  virtual Step at(std::size_t stage, std::uint64_t position) const = 0;
  /// The positions of a stage's forward and backward of `microbatch`.
  virtual std::uint64_t forward_position(std::size_t stage, std::uint64_t microbatch) const = 0;
  virtual std::uint64_t backward_position(std::size_t stage, std::uint64_t microbatch) const = 0;
  /// The micro-batch of backward number `count` (0..M-1). It is its own inverse: for a micro-batch it gives the number.
  virtual std::uint64_t nth_backward(std::uint64_t count) const = 0;
};

/// F0 B0 F1 B1 …: the first stage waits for B before the next F, so the whole pipeline holds one micro-batch at a time.
/// Source: Sky Computing's executor.
std::unique_ptr<ComputeOrder> sequential_order();

/// All forwards, then all backwards, the last micro-batch first.
/// Source: Huang et al., GPipe, 2019, figure 2.
std::unique_ptr<ComputeOrder> gpipe_order(std::uint64_t microbatches);

/// min(M, stages after this one) forwards to fill the pipeline, then one forward and one backward alternately, then the
/// remaining backwards, the first micro-batch first.
/// Source: Narayanan et al., PipeDream, 2019, and, with a flush after each step, Megatron-LM, 2021, section 2.2.
std::unique_ptr<ComputeOrder> one_forward_one_backward_order(std::size_t stages, std::uint64_t microbatches);

}  // namespace isobar::schedules

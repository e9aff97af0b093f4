#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace isobar::schedules {

/// The order in which the stages of a pipeline work on M micro-batches: what sets one schedule apart from another.
///
/// Every stage forwards micro-batches 0, 1, … M-1 and takes them back in one order that all stages share, so that the
/// sends of a stage meet the receives of its neighbour. Positions count the forwards and backwards of a stage from 0;
/// each question is answered in O(1).
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
  /// Where a stage forwards `microbatch`, and where it takes it back.
  virtual std::uint64_t forward_position(std::size_t stage, std::uint64_t microbatch) const = 0;
  virtual std::uint64_t backward_position(std::size_t stage, std::uint64_t microbatch) const = 0;
  /// The micro-batch that goes back as number `count` (0..M-1). Its own inverse: also which number a micro-batch has.
  virtual std::uint64_t nth_backward(std::uint64_t count) const = 0;
};

/// F0 B0 F1 B1 …: since the first stage waits for B before the next F, one micro-batch is under way in the whole
/// pipeline. Source: what Sky Computing's executor does.
std::unique_ptr<ComputeOrder> sequential_order();

/// All forwards, then all backwards, the last micro-batch first.
/// Source: Huang et al., GPipe, 2019, figure 2.
std::unique_ptr<ComputeOrder> gpipe_order(std::uint64_t microbatches);

/// min(M, stages behind) forwards to fill the pipeline, then one forward and one backward by turns, then the remaining
/// backwards, the first micro-batch first.
/// Source: Narayanan et al., PipeDream, 2019, and, with a flush after each step, Megatron-LM, 2021, section 2.2.
std::unique_ptr<ComputeOrder> one_forward_one_backward_order(std::size_t stages, std::uint64_t microbatches);

}  // namespace isobar::schedules

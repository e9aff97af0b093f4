#pragma once

#include "core/order/microbatch_pattern.hpp"
#include "core/order/order.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace isobar::schedules {

/// The slots of an order by opcode and part, so that each Series need not look for its own among all. The order must
/// outlive it.
class OrderSlots {
 public:
  /// A slot: tasks that are `step` positions apart.
  struct Place {
    std::uint64_t run = 0;
    std::uint64_t position = 0;  // of its first task
    std::uint64_t step = 1;
    std::uint64_t times = 1;
    std::uint64_t microbatch = 0;  // of its first task
    std::int64_t stride = 1;       // from the micro-batch of a task to the next
  };
  /// Of slots of one opcode and part, no more are kept.
  static constexpr std::size_t most = 5;

  explicit OrderSlots(const Order& order);

  const Order& order() const { return order_; }
  /// In the order of the runs; `most` of them if there are as many or more.
  std::span<const Place> of(Opcode opcode, std::uint32_t part) const;

 private:
  const Order& order_;
  std::map<std::pair<Opcode, std::uint32_t>, std::vector<Place>> places_;
};

/// The tasks of one stage whose results go to a neighbouring stage, in the order of its rank: its forwards, or those of
/// its backwards that make the gradients of its inputs (Backward or BackwardInput). The k-th message of a channel
/// carries the result of task k. Tasks count the micro-batches of the stage's replica.
///
/// Keeps a pointer to the order. A look-up takes a few comparisons if the tasks are in few loops that go through
/// neighbouring micro-batches, as those of 1F1B and GPipe; otherwise those of the order.
class Series {
 public:
  /// No tasks.
  Series() = default;
  static Series forwards(const OrderSlots& slots, std::uint32_t part) { return {slots, Opcode::Forward, part}; }
  /// Without tasks if the order has no backwards of the part. A part that has some Backward counts as having no others.
  static Series backwards(const OrderSlots& slots, std::uint32_t part);

  /// The same for a replica that takes some of the step's micro-batches. Keeps the pointer.
  Series of_replica(const MicrobatchPattern* pattern, std::size_t replica) const;
  /// The tasks of a whole series on the micro-batches that `is_taken` accepts. Takes memory for each of them, and
  /// `nth` and `index_of` take O(log tasks) more, unless it accepts all.
  Series only(const std::function<bool(std::uint64_t microbatch)>& is_taken) const;

  bool empty() const { return order_ == nullptr; }
  std::uint64_t length() const
  {
    if (is_part()) return division_->taken.size();
    return empty() ? 0 : order_->count(opcode_, part_);
  }
  /// Task number `index` (0..length-1).
  Task nth(std::uint64_t index) const;
  /// The task that works on a micro-batch.
  Task of(std::uint64_t microbatch) const { return {opcode_, part_, microbatch}; }
  /// The number of a task: the inverse of `nth`.
  std::uint64_t index_of(const Task& task) const;
  /// The position of a task in the order of the rank.
  std::uint64_t position_of(const Task& task) const;
  /// The micro-batch of the step for one of the replica.
  std::uint64_t of_step(std::uint64_t microbatch) const
  {
    if (division_ == nullptr || division_->pattern == nullptr) return microbatch;
    return division_->pattern->nth(division_->replica, microbatch);
  }

 private:
  /// Tasks of one slot of the order, each on the next micro-batch or each on the one before.
  struct Loop {
    std::uint64_t index = 0;  // of its first task in the series
    std::uint64_t length = 0;
    std::uint64_t microbatch = 0;  // of its first task
    bool is_ascending = true;
    std::uint64_t position = 0;  // of its first task
    std::uint64_t step = 1;      // from the position of a task to the next

    /// How many of its tasks come before that of a micro-batch; at least `length` for one that is not in the loop.
    std::uint64_t distance_to(std::uint64_t to) const { return is_ascending ? to - microbatch : microbatch - to; }
  };

  /// What a series has that is not all of a rank's tasks on all micro-batches of the step.
  struct Division {
    const MicrobatchPattern* pattern = nullptr;  // none: the replica takes all
    std::size_t replica = 0;
    std::vector<std::uint64_t> taken;  // the numbers of its tasks in the whole series; none: it is whole
  };

  Series(const OrderSlots& slots, Opcode opcode, std::uint32_t part);

  bool is_part() const { return division_ != nullptr && !division_->taken.empty(); }
  void find_loops(std::span<const OrderSlots::Place> places);
  Task nth_of_all(std::uint64_t index) const;
  std::uint64_t index_among_all(const Task& task) const;
  std::span<const Loop> loops() const { return {loops_.data(), loop_count_}; }
  const Loop* loop_with(std::uint64_t microbatch) const;

  // The loops are in place and close to the beginning, to spare cache misses.
  const Order* order_ = nullptr;
  Opcode opcode_ = Opcode::Forward;
  std::uint8_t loop_count_ = 0;  // 0: the order looks up
  std::uint32_t part_ = 0;
  std::shared_ptr<const Division> division_;           // none: nothing is divided
  std::array<Loop, OrderSlots::most - 1> loops_ = {};  // of all tasks
};

}  // namespace isobar::schedules

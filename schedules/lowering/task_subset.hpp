#pragma once

#include "core/order/order.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace isobar::schedules {

/// Some of the tasks of an order, numbered as they come. Looked up both ways in O(log runs); takes O(slots) memory.
class TaskSubset {
 public:
  /// No tasks.
  TaskSubset() = default;
  /// `has` may depend on opcode and part only.
  TaskSubset(const Order& order, const std::function<bool(const Task&)>& has);

  std::uint64_t length() const { return length_; }
  /// A task and its position in the order.
  struct Place {
    std::uint64_t position = 0;
    Task task;
  };
  /// Task number `index` (0..length-1).
  Place place_of(std::uint64_t index) const;
  /// How many of the tasks come before a position of the order: the number of the task there.
  std::uint64_t index_at(std::uint64_t position) const;

 private:
  struct Loop {
    std::uint64_t position = 0;  // of its first task in the order
    std::uint64_t index = 0;     // of its first task in the subset
    std::uint64_t times = 1;
    std::size_t all = 1;              // tasks of a repetition
    std::vector<std::size_t> places;  // those of them in the subset
    std::vector<Slot> slots;          // the same
  };

  std::vector<Loop> loops_;
  std::uint64_t length_ = 0;
};

}  // namespace isobar::schedules

#include "schedules/lowering/task_subset.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace isobar::schedules::task_subset_test {
namespace {

TEST(TaskSubset, NumbersItsTasksAsTheyCome)
{
  const auto forward = [](std::uint32_t part, std::uint64_t microbatch) {
    return Slot{{Opcode::Forward, part, microbatch}, 1};
  };
  const auto backward = [](std::uint32_t part, std::uint64_t microbatch) {
    return Slot{{Opcode::Backward, part, microbatch}, 1};
  };
  const Order order({{3, {forward(0, 0), forward(1, 0)}},
                     {1, {backward(1, 0)}},
                     {4, {forward(0, 3), backward(1, 1), forward(1, 3), backward(0, 0)}},
                     {2, {backward(1, 5)}},
                     {3, {backward(0, 4)}}});
  for (int opcodes = 0; opcodes < 4; ++opcodes) {
    for (int parts = 0; parts < 4; ++parts) {
      const auto has = [&](const Task& task) {
        return ((opcodes >> (task.opcode == Opcode::Forward ? 0 : 1)) & (parts >> task.part) & 1) != 0;
      };
      const TaskSubset subset(order, has);
      std::uint64_t index = 0;
      for (std::uint64_t position = 0; position < order.length(); ++position) {
        EXPECT_EQ(subset.index_at(position), index) << position;
        const Task task = order.at(position);
        if (!has(task)) continue;
        EXPECT_EQ(subset.place_of(index).position, position);
        EXPECT_EQ(subset.place_of(index).task, task);
        ++index;
      }
      EXPECT_EQ(subset.length(), index);
      EXPECT_EQ(subset.index_at(order.length()), index);
      EXPECT_THROW(subset.place_of(index), std::logic_error);
    }
  }
}

}  // namespace
}  // namespace isobar::schedules::task_subset_test

#include "schedules/orders/dualpipe_v.hpp"

#include "tests/schedules/orders/order_play.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace isobar::schedules::dualpipe_v_test {
namespace {

/// When the last task of dualpipe-v ends where a forward and the backward behind it start and end together. Pairs are
/// all but the first on the last device, whose forward and backward its authors keep apart.
double makespan_of_pairs(const PipelineShape& shape, const std::vector<Order>& orders, double f, double b, double w,
                         double f_b)
{
  constexpr double never = std::numeric_limits<double>::infinity();
  struct Work {
    std::vector<Task> tasks;
    double time = 0;
  };
  const std::size_t p = shape.ranks();
  const auto parts = stages_by_rank(shape);
  std::vector<std::vector<Work>> work(p);
  for (std::size_t rank = 0; rank < p; ++rank) {
    const auto tasks = tasks_of(orders[rank]);
    const std::uint64_t before_pairs = 2 * (p - rank - 1) + 2 * (rank + 1) + 3 * (p - rank - 1);
    bool is_apart = rank == p - 1;
    for (std::size_t i = 0; i < tasks.size();) {
      const auto is = [&](std::size_t offset, Opcode opcode) {
        return i + offset < tasks.size() && tasks[i + offset].opcode == opcode;
      };
      const auto is_whole = [&](std::size_t at) {
        return is(at, Opcode::BackwardInput) && is(at + 1, Opcode::BackwardWeight) &&
               tasks[i + at].part == tasks[i + at + 1].part && tasks[i + at].microbatch == tasks[i + at + 1].microbatch;
      };
      if (i >= before_pairs && is(0, Opcode::Forward) && is_whole(1) && !std::exchange(is_apart, false)) {
        work[rank].push_back({{tasks[i], tasks[i + 1]}, f_b});
        i += 3;
      } else if (i >= before_pairs && is_whole(0)) {
        work[rank].push_back({{tasks[i]}, b});
        i += 2;
      } else {
        const bool is_forward = tasks[i].opcode == Opcode::Forward;
        const bool is_weight = tasks[i].opcode == Opcode::BackwardWeight;
        work[rank].push_back({{tasks[i]}, is_forward ? f : is_weight ? w : b - w});
        ++i;
      }
    }
  }
  const std::vector<double> no_ends(shape.microbatches, never);
  std::vector<std::vector<double>> forwards(shape.stages(), no_ends);
  std::vector<std::vector<double>> backwards(shape.stages(), no_ends);
  std::vector<double> free(p, 0);
  std::vector<std::size_t> next(p, 0);
  const auto input_of = [&](std::size_t rank, const Task& task) {
    const std::size_t stage = parts[rank][task.part];
    if (task.opcode == Opcode::BackwardWeight) return backwards[stage][task.microbatch];
    if (task.opcode == Opcode::Forward) return stage == 0 ? 0 : forwards[stage - 1][task.microbatch];
    const double own = forwards[stage][task.microbatch];
    return stage + 1 == shape.stages() ? own : std::max(own, backwards[stage + 1][task.microbatch]);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < p; ++rank) {
      for (; next[rank] < work[rank].size(); ++next[rank]) {
        const auto& [tasks, time] = work[rank][next[rank]];
        double start = free[rank];
        for (const auto& task : tasks) start = std::max(start, input_of(rank, task));
        if (start == never) break;
        free[rank] = start + time;
        for (const auto& task : tasks) {
          if (task.opcode == Opcode::BackwardWeight) continue;
          auto& ends = task.opcode == Opcode::Forward ? forwards : backwards;
          ends[parts[rank][task.part]][task.microbatch] = free[rank];
        }
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < p; ++rank) EXPECT_EQ(next[rank], work[rank].size());
  return *std::max_element(free.begin(), free.end());
}

TEST(DualPipeV, IdlesAsPublishedWhereAPairIsOneTask)
{
  // F and B of a pair begin when both inputs are there, end together, and take f_b: (p - 1) (F&B + B - 3 W), with B the
  // whole backward. Its authors' formula; it holds for F = B/2 = W, without gain by the overlap.
  constexpr double f = 1;
  constexpr double b = 2;
  constexpr double w = 1;
  constexpr double f_b = 3;
  for (std::size_t p = 1; p <= 8; ++p) {
    const std::uint64_t M = 2 * p + 3;
    const PipelineShape shape = folded(Folding::V, p, 2, M);
    const auto orders = orders_of(require_schedule("dualpipe-v"), shape);
    EXPECT_DOUBLE_EQ(makespan_of_pairs(shape, orders, f, b, w, f_b) - static_cast<double>(2 * M) * (f + b),
                     static_cast<double>(p - 1) * (f_b + b - 3 * w));
  }
}

}  // namespace
}  // namespace isobar::schedules::dualpipe_v_test

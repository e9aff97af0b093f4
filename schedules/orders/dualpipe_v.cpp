#include "schedules/orders/dualpipe_v.hpp"

#include "schedules/orders/surplus.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

namespace isobar::schedules {

namespace {

/// The tasks after the last forward of a rank: the backwards of the last p micro-batches through part 0, and of the
/// last `rank + 1` through part 1. Weight gradients of the second half wait, so that others get their gradients early.
class LastBackwards {
 public:
  LastBackwards(std::size_t rank, std::size_t ranks, std::uint64_t microbatches)
      : next_({microbatches - ranks, microbatches - (rank + 1)})
  {
    // The first half of 2 (rank + 1) backwards in turn is whole.
    for (std::uint64_t n = 0; n < 2 * (rank + 1); ++n) {
      const bool is_whole = n < rank + 1;
      add_input(n % 2 == 0 ? 1 : 0);
      if (is_whole) add_weight();
    }
    for (std::size_t n = rank + 1; n < ranks; ++n) {
      add_weight();
      add_input(0);
    }
    while (!waiting_.empty()) add_weight();
  }

  Run run() && { return {1, std::move(slots_)}; }

 private:
  void add_input(std::uint32_t part)
  {
    const Task task{Opcode::BackwardInput, part, next_[part]++};
    slots_.push_back({task});
    waiting_.push_back({Opcode::BackwardWeight, part, task.microbatch});
  }

  /// Of the backward that waits for the longest time.
  void add_weight()
  {
    slots_.push_back({waiting_.front()});
    waiting_.pop_front();
  }

  std::array<std::uint64_t, 2> next_;  // micro-batch by part
  std::deque<Task> waiting_;
  std::vector<Slot> slots_;
};

}  // namespace

Order dualpipe_v_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches, bool overlaps)
{
  const std::uint64_t p = ranks;
  const std::uint64_t r = rank;
  const std::uint64_t n = std::max<std::uint64_t>(microbatches, 2 * p);
  const auto F = [](std::uint32_t part, std::uint64_t first) { return Slot{{Opcode::Forward, part, first}}; };
  // Of a pair.
  const auto P = [overlaps](std::uint32_t part, std::uint64_t first) {
    return Slot{{Opcode::Forward, part, first}, 1, overlaps};
  };
  const auto B = [](std::uint32_t part, std::uint64_t first) { return Slot{{Opcode::BackwardInput, part, first}}; };
  const auto W = [](std::uint32_t part, std::uint64_t first) { return Slot{{Opcode::BackwardWeight, part, first}}; };
  const std::uint64_t after = p - r - 1;          // devices
  const std::uint64_t pairs = n - 2 * p + r + 1;  // rounds of two pairs
  const std::vector<Run> runs = {
      {2 * after, {F(0, 0)}},
      {r + 1, {F(0, 2 * after), F(1, 0)}},
      {after, {B(1, 0), W(1, 0), F(1, r + 1)}},
      {pairs, {P(0, 2 * p - r - 1), B(1, after), W(1, after), P(1, p), B(0, 0), W(0, 0)}},
      {after, {B(1, after + pairs), W(1, after + pairs), P(1, p + pairs), B(0, pairs), W(0, pairs)}},
      LastBackwards(rank, ranks, n).run(),
  };
  return Order(n == microbatches ? runs : without_surplus(runs, microbatches));
}

std::vector<Order> dualpipe_v_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    orders.push_back(dualpipe_v_order(rank, shape.ranks(), shape.microbatches, overlaps_experts(choice)));
  }
  return orders;
}

}  // namespace isobar::schedules

#include "schedules/orders/zero_bubble_v.hpp"

#include "schedules/orders/surplus.hpp"

#include <algorithm>

namespace isobar::schedules {

Order zero_bubble_v_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches)
{
  const std::uint64_t p = ranks;
  const std::uint64_t r = rank;
  const std::uint64_t n = std::max<std::uint64_t>(microbatches, 2 * p - 1);
  const auto F = [](std::uint32_t part, std::uint64_t first) { return Slot{{Opcode::Forward, part, first}}; };
  const auto B = [](std::uint32_t part, std::uint64_t first) { return Slot{{Opcode::BackwardInput, part, first}}; };
  const auto W = [](std::uint32_t part, std::uint64_t first) { return Slot{{Opcode::BackwardWeight, part, first}}; };
  const std::uint64_t ahead = 2 * (p - r) - 1;      // forwards of part 0 before the first of part 1
  const std::uint64_t full = n - (ahead + r);       // rounds with all six tasks
  const std::uint64_t without_forward = p - r - 1;  // rounds after the last forward of part 0
  const std::vector<Run> runs = {
      {ahead, {F(0, 0)}},
      {r, {F(1, 0), F(0, ahead)}},
      {p - r, {F(1, r), B(1, 0), W(1, 0)}},
      {full, {F(0, ahead + r), B(0, 0), W(0, 0), F(1, p), B(1, p - r), W(1, p - r)}},
      {without_forward, {B(0, full), W(0, full), F(1, p + full), B(1, p - r + full), W(1, p - r + full)}},
      {r, {B(0, n - p), B(1, n - r)}},
      {p - r, {B(0, n - p + r), W(0, n - p)}},
      {r, {W(1, n - r)}},
      {r, {W(0, n - r)}},
  };
  return Order(n == microbatches ? runs : without_surplus(runs, microbatches));
}

std::vector<Order> zero_bubble_v_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    orders.push_back(zero_bubble_v_order(rank, shape.ranks(), shape.microbatches));
  }
  return orders;
}

}  // namespace isobar::schedules

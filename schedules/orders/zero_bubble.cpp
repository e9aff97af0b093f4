#include "schedules/orders/zero_bubble.hpp"

#include "schedules/orders/warm_up.hpp"

#include <algorithm>
#include <utility>

namespace isobar::schedules {

namespace {

/// `depth` times the warm-up and the lag of H1.
std::vector<Order> orders_of_depth(std::uint64_t depth, const PipelineShape& shape, const ScheduleChoice& choice)
{
  const auto given = given_warm_up(shape, choice);
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    const std::uint64_t warm_up = given ? (*given)[rank] : depth * (shape.ranks() - 1 - rank);
    orders.push_back(zero_bubble_order(warm_up, depth * rank, shape.microbatches));
  }
  return orders;
}

}  // namespace

Order zero_bubble_order(std::uint64_t warm_up, std::uint64_t lag, std::uint64_t microbatches)
{
  const std::uint64_t M = microbatches;
  const std::uint64_t w = std::min(warm_up, M);
  const std::uint64_t d = std::min(lag, M);
  const auto F = [](std::uint64_t microbatch) { return Slot{{Opcode::Forward, 0, microbatch}}; };
  const auto B = [](std::uint64_t microbatch) { return Slot{{Opcode::BackwardInput, 0, microbatch}}; };
  const auto W = [](std::uint64_t microbatch) { return Slot{{Opcode::BackwardWeight, 0, microbatch}}; };
  // Rounds before M - w have a forward, and those from d on have a weight gradient.
  const std::uint64_t one = std::min(M - w, d);
  const std::uint64_t other = std::max(M - w, d);
  std::vector<Run> runs = {{w, {F(0)}}, {one, {F(w), B(0)}}};
  if (M - w < d) {
    runs.push_back({other - one, {B(one)}});
  } else {
    runs.push_back({other - one, {F(w + one), B(one), W(0)}});
  }
  runs.push_back({M - other, {B(other), W(other - d)}});
  runs.push_back({d, {W(M - d)}});
  return Order(std::move(runs));
}

std::vector<Order> zero_bubble_h1_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  return orders_of_depth(1, shape, choice);
}

std::vector<Order> zero_bubble_h2_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  return orders_of_depth(2, shape, choice);
}

}  // namespace isobar::schedules

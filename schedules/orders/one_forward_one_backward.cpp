#include "schedules/orders/one_forward_one_backward.hpp"

#include "schedules/orders/warm_up.hpp"

#include <algorithm>
#include <utility>

namespace isobar::schedules {

Order one_forward_one_backward_order(std::uint64_t warm_up, std::uint64_t microbatches)
{
  const std::uint64_t ahead = std::min(warm_up, microbatches);
  const std::uint64_t rounds = microbatches - ahead;
  std::vector<Run> runs = {{ahead, {{{Opcode::Forward, 0, 0}}}},
                           {rounds, {{{Opcode::Forward, 0, ahead}}, {{Opcode::Backward, 0, 0}}}},
                           {ahead, {{{Opcode::Backward, 0, rounds}}}}};
  return Order(std::move(runs));
}

std::vector<Order> one_forward_one_backward_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  const auto given = given_warm_up(shape, choice);
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    const std::uint64_t warm_up = given ? (*given)[rank] : shape.ranks() - 1 - rank;
    orders.push_back(one_forward_one_backward_order(warm_up, shape.microbatches));
  }
  return orders;
}

}  // namespace isobar::schedules

#include "schedules/orders/sequential.hpp"

namespace isobar::schedules {

std::vector<Order> sequential_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  const std::vector<Run> runs = {{shape.microbatches, {{{Opcode::Forward, 0, 0}}, {{Opcode::Backward, 0, 0}}}}};
  return std::vector<Order>(shape.ranks(), Order(runs));
}

}  // namespace isobar::schedules

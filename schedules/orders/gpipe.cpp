#include "schedules/orders/gpipe.hpp"

namespace isobar::schedules {

std::vector<Order> gpipe_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  const std::uint64_t microbatches = shape.microbatches;
  const std::vector<Run> runs = {{microbatches, {{{Opcode::Forward, 0, 0}, 1}}},
                                 {microbatches, {{{Opcode::Backward, 0, microbatches - 1}, -1}}}};
  return std::vector<Order>(shape.ranks(), Order(runs));
}

}  // namespace isobar::schedules

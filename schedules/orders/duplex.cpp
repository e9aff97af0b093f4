#include "schedules/orders/duplex.hpp"

#include <utility>

namespace isobar::schedules {

std::vector<Order> duplex_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  const std::uint64_t microbatches = shape.microbatches;
  std::vector<Order> orders;
  for (const auto& stages : stages_by_rank(shape)) {
    std::vector<Run> runs;
    for (std::uint32_t part = 0; part < stages.size(); ++part) {
      runs.push_back({microbatches, {{{Opcode::Forward, part, 0}, 1}}});
    }
    for (auto part = static_cast<std::uint32_t>(stages.size()); part-- > 0;) {
      runs.push_back({microbatches, {{{Opcode::Backward, part, microbatches - 1}, -1}}});
    }
    orders.emplace_back(std::move(runs));
  }
  return orders;
}

}  // namespace isobar::schedules

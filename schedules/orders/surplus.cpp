#include "schedules/orders/surplus.hpp"

#include <utility>

namespace isobar::schedules {

std::vector<Run> without_surplus(const std::vector<Run>& runs, std::uint64_t microbatches)
{
  Run rest;
  for (const auto& [times, slots] : runs) {
    for (std::uint64_t n = 0; n < times; ++n) {
      for (const auto& slot : slots) {
        Task task = slot.first;
        task.microbatch += n;
        // The backward of a pair is of an earlier micro-batch than its forward.
        if (task.microbatch < microbatches) rest.slots.push_back({task, 1, slot.overlaps});
      }
    }
  }
  return {std::move(rest)};
}

}  // namespace isobar::schedules

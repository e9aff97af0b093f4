#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::schedules {

/// The chain goes down the devices and back up: parts 0 and 1 of rank r are stages r and 2 p - 1 - r. So the first
/// device has the first and the last stage, begins the backwards early, and never waits where the forward, the input
/// gradient and the weight gradient of each stage take equal time and M >= 2 p. At most 2 p parts of micro-batches are
/// in flight on a rank: as much memory as 1F1B on the first. The order does not adapt to unequal times.
///
/// Fewer than 2 p - 1 micro-batches take the order of 2 p - 1, without those beyond M; then O(p) slots a rank, else at
/// most 23.
///
/// Source: Qi et al., Pipeline Parallelism with Controllable Memory, 2024, section 3, in the order of PyTorch's
/// ScheduleZBVZeroBubble.
Order zero_bubble_v_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches);

std::vector<Order> zero_bubble_v_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule zero_bubble_v_schedule = {
    .name = "zero-bubble-v",
    .summary = "two stages on each device, there and back, without idle time where stages and passes are equal",
    .source = "Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), 2024",
    .folding = Folding::V,
    .splits_backward = true,
    .make_orders = zero_bubble_v_orders,
};

}  // namespace isobar::schedules

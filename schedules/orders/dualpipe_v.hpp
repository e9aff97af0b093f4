#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::schedules {

/// The chain goes down the devices and back up, as under zero-bubble-v: parts 0 and 1 of rank r are stages r and
/// 2 p - 1 - r. After a warm-up, each forward through one part is paired with a whole backward through the other: the
/// forward, then BackwardInput and BackwardWeight. `overlaps`: as its authors do it, the two of a pair run together
/// (Slot::overlaps); else in turn.
///
/// At most min(2 M, 2 p + 1) parts of micro-batches are in flight on a rank. A device of equal stages without transfers
/// idles for (p - 1) (F + B - W), in times of a part for a forward, an input and a weight gradient, where
/// F / 2 <= W <= B <= F and M >= 2 p.
///
/// Fewer than 2 p micro-batches, which the published schedule refuses, take the order of 2 p, without those beyond M.
/// O(p) slots a rank.
///
/// Source: DeepSeek-AI, DualPipe (github.com/deepseek-ai/DualPipe), dualpipev.py; PyTorch's ScheduleDualPipeV has the
/// same order.
Order dualpipe_v_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches, bool overlaps = false);

/// With "overlap_experts" the passes of a pair run together.
std::vector<Order> dualpipe_v_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule dualpipe_v_schedule = {
    .name = "dualpipe-v",
    .summary = "two stages on each device, there and back; each forward is paired with a backward of the other",
    .source = "DeepSeek-AI, DualPipe (arXiv 2412.19437), 2024",
    .numbers = {overlap_experts_key},
    .folding = Folding::V,
    .splits_backward = true,
    .make_orders = dualpipe_v_orders,
};

}  // namespace isobar::schedules

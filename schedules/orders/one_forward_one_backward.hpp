#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstdint>

namespace isobar::schedules {

/// The order of a stage: min(M, warm_up) forwards to fill the pipeline, then one forward and one backward alternately,
/// then the remaining backwards, the first micro-batch first. min(M, warm_up + 1) micro-batches in flight. Three runs.
/// `overlaps`: each such forward runs together with the backward after it (Slot::overlaps).
Order one_forward_one_backward_order(std::uint64_t warm_up, std::uint64_t microbatches, bool overlaps = false);

/// The warm-up is as long as the stages after this one, or as "warm_up" has it: longer ones hide the delay of transfers
/// (warm_up.hpp). With "overlap_experts" a device has two forwards more than the next one, and the last has one: a
/// pair of passes takes as long as both of them, so a micro-batch comes back two pairs later for each device.
///
/// Source: Narayanan et al., PipeDream, 2019, and, with a flush after each step, Megatron-LM, 2021, section 2.2.
/// @throws InputError for a wrong "warm_up" (given_warm_up), and with "overlap_experts" for one under which pairs of
/// neighbouring devices would wait for each other.
std::vector<Order> one_forward_one_backward_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule one_forward_one_backward_schedule = {
    .name = "1f1b",
    .summary = "one forward and one backward alternately, after a warm-up of forwards",
    .source = "Narayanan et al., PipeDream, 2019, with the flush of Megatron-LM (arXiv 2104.04473), 2021",
    .numbers = {"warm_up", overlap_experts_key},
    .make_orders = one_forward_one_backward_orders,
};

}  // namespace isobar::schedules

#pragma once

#include "schedules/orders/schedule.hpp"

namespace isobar::schedules {

/// F0 B0 F1 B1 …: the first stage waits for B before the next F, so the whole pipeline holds one micro-batch at a time.
/// A run of two slots.
///
/// Source: Sky Computing's executor.
std::vector<Order> sequential_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule sequential_schedule = {
    .name = "sequential",
    .summary = "one micro-batch at a time passes forward and back",
    .source = "Sky Computing (arXiv 2202.11836), 2022",
    .make_orders = sequential_orders,
};

}  // namespace isobar::schedules

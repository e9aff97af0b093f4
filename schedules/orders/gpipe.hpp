#pragma once

#include "schedules/orders/schedule.hpp"

namespace isobar::schedules {

/// All forwards, then all backwards, the last micro-batch first: M micro-batches in flight. Two runs of a slot.
///
/// Source: Huang et al., GPipe, 2019, figure 2.
std::vector<Order> gpipe_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule gpipe_schedule = {
    .name = "gpipe",
    .summary = "all forwards, then all backwards",
    .source = "Huang et al., GPipe (arXiv 1811.06965), 2019",
    .make_orders = gpipe_orders,
};

}  // namespace isobar::schedules

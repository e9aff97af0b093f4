#pragma once

#include "core/order/order.hpp"

#include <cstdint>
#include <vector>

namespace isobar::schedules {

/// The runs of an order for more micro-batches without those from `microbatches` on: one run with a slot for each task.
/// What is left of orders in which no devices wait for each other are such orders. O(tasks).
std::vector<Run> without_surplus(const std::vector<Run>& runs, std::uint64_t microbatches);

}  // namespace isobar::schedules

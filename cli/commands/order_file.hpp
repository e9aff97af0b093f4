#pragma once

#include "core/order/order.hpp"
#include "schedules/orders/schedule.hpp"

#include <map>
#include <string>
#include <vector>

namespace isobar::cli {

/// The orders of a pipeline as isobar-orders/1 (docs/schedules.md), a run a line. `schedule` names what made them.
std::string orders_to_json(const schedules::PipelineShape& shape, const std::vector<Order>& orders,
                           const std::string& schedule);

/// Reads a file of orders for a pipeline: isobar-orders/1 (JSON), or what torch.distributed.pipelining writes (CSV).
/// The ranks of a CSV file may have other numbers than the pipeline's, but must have the same stages.
/// Without `has_experts`, whose exchanges passes that run together hide, those of a CSV file come in turn.
/// @returns the orders by device. @throws InputError naming file and place of each fault, also for a file whose stages
/// or micro-batches are not those of the pipeline.
std::map<std::string, Order> read_order_file(const std::string& file, const schedules::PipelineShape& shape,
                                             bool has_experts);

}  // namespace isobar::cli

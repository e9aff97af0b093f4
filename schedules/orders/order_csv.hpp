#pragma once

#include "core/plan/order.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::schedules {

/// What a CSV file has: a pipeline whose devices are named by their ranks ("0", "1", …), and the order of each rank.
struct CsvOrders {
  PipelineShape shape;
  std::vector<Order> orders;
};

/// The largest number of cells of a CSV file.
inline constexpr std::size_t most_csv_cells = 4'000'000;

/// Reads a schedule as torch.distributed.pipelining writes it without transfers: a row for each rank, without a header,
/// and a task in each cell, such as 2F0 (stage, letter, micro-batch). Letters are F, B for a whole backward pass, I and
/// W for its halves. Empty cells are skipped. Finds loops in the rows (with_loops).
/// @throws InputError naming file, line and column of each fault: a cell that is not a task, a stage on two ranks, a
/// stage or task that is missing or listed twice, and what faults_of_listed finds.
CsvOrders orders_from_csv(const std::string& text, const std::string& name);

/// Writes orders likewise, a cell for each task and no empty ones. @throws InputError beyond most_csv_cells.
std::string orders_to_csv(const PipelineShape& shape, const std::vector<Order>& orders);

}  // namespace isobar::schedules

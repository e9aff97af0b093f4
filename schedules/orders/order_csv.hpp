#pragma once

#include "core/order/order.hpp"
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

/// Reads a schedule as torch.distributed.pipelining writes it, with or without transfers: a row for each rank, without
/// a header, and a task in each cell, such as 2F0 (stage, letter, micro-batch). Letters are F, B for a whole backward
/// pass, I and W for its halves. (2F1;1B0)OVERLAP_F_B has two tasks that run together (Slot::overlaps). Empty cells are
/// skipped, and so are transfers and the work on sharded parameters, which follow from the tasks: SEND_F, RECV_F,
/// SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD. Where a stage has both
/// whole and halved backward passes, B becomes I and W. Finds loops in the rows (with_loops).
/// @throws InputError naming file, line and column of each fault: a cell that is not a task, a stage on two ranks, a
/// stage or task that is missing or listed twice, and what faults_of_listed finds.
CsvOrders orders_from_csv(const std::string& text, const std::string& name);

/// Writes orders likewise, a cell for each task, or for those that run together, and no empty ones.
/// @throws InputError beyond most_csv_cells, and for a stage of which all halves of backward passes run beside
/// forwards.
std::string orders_to_csv(const PipelineShape& shape, const std::vector<Order>& orders);

}  // namespace isobar::schedules

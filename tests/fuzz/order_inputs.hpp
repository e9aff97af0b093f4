#pragma once

#include "core/order/order_text.hpp"
#include "schedules/orders/order_csv.hpp"
#include "tests/fuzz/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

/// Fuzz targets for orders: the runs of a plan, and CSV files.
namespace isobar::fuzz {

inline Order order_from(const std::string& text)
{
  FaultList faults("input");
  auto order = read_order(parse_json(text, "input"), "order", {4, 1000}, faults);
  faults.throw_if_any();
  return order;
}

/// Checks that an accepted order has each task at its place, and is the same when it is written and read again.
inline void order(const std::string& text)
{
  Order read;
  try {
    read = order_from(text);
  } catch (const InputError& fault) {
    check_message(fault);
    return;
  }
  constexpr std::uint64_t most = 1'000;  // thousands of tasks show the same as millions
  for (std::uint64_t i = 0; i < std::min(read.length(), most); ++i) {
    const Task task = read.at(i);
    ensure(task.part < 4 && task.microbatch < 1000, "a task is within the limits");
    ensure(read.position_of(task) == i, "a task has one position");
    ensure(read.nth(task.opcode, task.part, read.index_of(task)) == task, "a task has one index");
  }
  std::string again;
  for (const auto& [times, slots] : run_texts_of(read)) {
    again += fmt::format("{}[{},\"{}\"]", again.empty() ? "" : ",", times, slots);
  }
  ensure(order_from("[" + again + "]") == read, "an order is read as it was written");
}

/// Checks that accepted orders are written as tasks that make the same orders.
inline void order_csv(const std::string& text)
{
  try {
    const auto read = schedules::orders_from_csv(text, "input");
    ensure(read.shape.ranks() == read.orders.size(), "a rank has an order");
    const std::string written = schedules::orders_to_csv(read.shape, read.orders);
    const auto again = schedules::orders_from_csv(written, "input");
    ensure(again.orders == read.orders, "orders are read as they were written");
    ensure(again.shape.rank_of_stage == read.shape.rank_of_stage, "stages stay on their ranks");
  } catch (const InputError& fault) {
    check_message(fault);
  }
}

}  // namespace isobar::fuzz

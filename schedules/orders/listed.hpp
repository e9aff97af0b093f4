#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::schedules {

/// What is wrong with the orders of a pipeline, by rank, one line for each fault; empty if they are sound.
///
/// - Each stage forwards each micro-batch once, and then takes it back: by Backward, or by BackwardInput and then
///   BackwardWeight. A stage uses one of both ways.
/// - Neighbouring stages on different devices order micro-batches alike, forwards and backwards: their transfers arrive
///   in the order in which they leave.
/// - Passes that run together are not of one micro-batch in one stage.
/// - No devices wait for each other in a circle. Sends are buffered, so that this excludes deadlocks. A forward that
///   runs together with a backward ends only when both can.
///
/// Tasks have their names (Task) with the position in the device's order. Orders with faults of an earlier kind are not
/// checked for later ones. O(tasks log slots) time, O(stages) memory.
std::vector<std::string> faults_of_orders(const PipelineShape& shape, const std::vector<Order>& orders);

/// How faults name what a file has.
struct OrderNames {
  std::function<std::string(std::size_t rank)> rank;                    ///< "device-0"
  std::function<std::string(std::size_t rank, const Task& task)> task;  ///< with its place: "B0.3 (position 7)"
};

/// The names of plan files: devices, and tasks with their positions.
OrderNames names_in_plans(const PipelineShape& shape, const std::vector<Order>& orders);

struct OrderFault {
  std::optional<std::size_t> rank;  ///< none where the orders of several ranks do not fit together
  std::string what;
};

/// What is wrong with orders that a file lists: as faults_of_orders, and more than 4,194,304 tasks on all devices
/// together, which would take too long to check and to play.
std::vector<OrderFault> faults_of_listed(const PipelineShape& shape, const std::vector<Order>& orders,
                                         const OrderNames& names);

/// The orders of ScheduleChoice::orders, of listed and of greedy. Stages may lie on devices in any way. With
/// "overlap_experts" some passes run together (Slot::overlaps).
/// @throws InputError for a device without an order, an order without a device, and with faults_of_listed.
std::vector<Order> listed_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule listed_schedule = {
    .name = "listed",
    .summary = "the orders that the plan lists for each device",
    .source = "the plan",
    .numbers = {overlap_experts_key},
    .takes_orders = true,
    .folding = Folding::Any,
    .make_orders = listed_orders,
};

}  // namespace isobar::schedules

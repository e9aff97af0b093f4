#pragma once

#include "core/order/order.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::schedules {

/// The largest number of tasks of a picture.
inline constexpr std::uint64_t most_picture_tasks = 10'000'000;

/// Draws the orders of a plan, by rank, for a terminal: a line for each device, and columns of equal time, in which
/// forwards, input gradients and weight gradients take 1 unit and whole backward passes 2. Each task starts as soon as
/// it can; transfers and collectives take no time. Micro-batches are those of the step. Below come the length of the
/// step and what the letters mean.
///
///     c0  F0F1  B0--  B1--
///     c1    F0B0--F1B1--
///     9 units of time; F takes 1, B 2
///
/// Where each device has at most two stages, lower case shows the second; otherwise a task begins with its stage. Lines
/// that would be longer than `width` characters have … for the middle of the step.
/// @throws InputError beyond most_picture_tasks; std::logic_error for orders that do not end. O(tasks).
std::string picture_of(const Plan& plan, const std::vector<Order>& orders,
                       std::optional<std::size_t> width = std::nullopt);

}  // namespace isobar::schedules

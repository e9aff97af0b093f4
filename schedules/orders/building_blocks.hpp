#pragma once

#include "schedules/orders/schedule.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::schedules {

/// When a rank works on micro-batch 0, in units of time: its forwards through parts 0 and 1 and its input gradients
/// through parts 1 and 0. Micro-batch m follows 6 m units later; no two of the four are alike modulo 6.
using BuildingBlock = std::array<std::uint64_t, 4>;

/// The order of a rank that repeats a building block for each micro-batch. Weight gradients run in the units that are
/// free, the one that waits for the longest time first, and what is left at the end. Works for any times; units only
/// give the order. O(slots of a block's length) slots, O(slots log slots) time.
Order repeated_block(const BuildingBlock& block, std::uint64_t microbatches);

/// The chain goes down the devices and back up: parts 0 and 1 of rank r are stages r and 2 p - 1 - r. The first part's
/// forwards go down at half speed, so that a rank takes back micro-batches of both parts soon after their forwards:
/// min(2 M, p + 1) parts of micro-batches in flight, or p + 2 for an even p. That is half of 1F1B's first stage.
///
/// Equal stages and passes of one unit, without transfers: a device idles for 7 (p - 1) / 2 units, or 7 p / 2 - 2 for
/// an even p, of 6 (p - 1) under 1F1B. O(p) slots a rank.
///
/// Source: Qi et al., Pipeline Parallelism with Controllable Memory, 2024, section 3. Its authors' code also moves
/// tasks of the warm-up and of the end into idle time; here the block alone is repeated.
std::vector<Order> v_half_orders(const PipelineShape& shape, const ScheduleChoice& choice);

/// As v_half_orders, with the least memory: at most 2 (floor((p + 1) / 3) + 1) parts of micro-batches in flight, a
/// third of 1F1B's first stage. A device idles for 4 p - 5 units, or 4 p - 3 where 3 divides p.
std::vector<Order> v_min_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule v_half_schedule = {
    .name = "v-half",
    .summary = "two stages on each device, there and back, with half of 1f1b's memory for activations",
    .source = "Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), 2024",
    .folding = Folding::V,
    .splits_backward = true,
    .make_orders = v_half_orders,
};

inline constexpr Schedule v_min_schedule = {
    .name = "v-min",
    .summary = "two stages on each device, there and back, with a third of 1f1b's memory for activations",
    .source = "Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), 2024",
    .folding = Folding::V,
    .splits_backward = true,
    .make_orders = v_min_orders,
};

}  // namespace isobar::schedules

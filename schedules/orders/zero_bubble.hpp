#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstdint>

namespace isobar::schedules {

/// The order of a stage that splits its backwards: `warm_up` forwards; rounds n = 0 … M-1 of forward warm_up + n, input
/// gradient n and weight gradient n - lag, as far as there are such micro-batches; then the last `lag` weight
/// gradients. min(M, warm_up + lag + 1) micro-batches in flight. Numbers above M count as M. At most five runs.
Order zero_bubble_order(std::uint64_t warm_up, std::uint64_t lag, std::uint64_t microbatches);

/// Stage i of p has lag i, so that weight gradients fill its idle time at the end, and a warm-up of p - 1 - i forwards,
/// or as "warm_up" has it: longer ones hide the delay of transfers (warm_up.hpp).
///
/// min(M, p) micro-batches in flight on every stage. With equal stages and no transfers, no device idles longer between
/// its first and last task than (p - 1) max(B, F + B - W).
///
/// Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2.1.
/// @throws InputError for a wrong "warm_up" (given_warm_up).
std::vector<Order> zero_bubble_h1_orders(const PipelineShape& shape, const ScheduleChoice& choice);

/// As zero_bubble_h1_orders, with lag 2 i and a warm-up of 2 (p - 1 - i): min(M, 2 p - 1) micro-batches in flight, and
/// (p - 1) max(0, B - F, F + B - 2 W) of idle time.
std::vector<Order> zero_bubble_h2_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule zero_bubble_h1_schedule = {
    .name = "zero-bubble-h1",
    .summary = "1f1b whose weight gradients fill idle time, with no more memory than its first stage",
    .source = "Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), 2023",
    .numbers = {"warm_up"},
    .splits_backward = true,
    .make_orders = zero_bubble_h1_orders,
};

inline constexpr Schedule zero_bubble_h2_schedule = {
    .name = "zero-bubble-h2",
    .summary = "zero-bubble-h1 with twice the micro-batches in flight and less idle time",
    .source = "Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), 2023",
    .numbers = {"warm_up"},
    .splits_backward = true,
    .make_orders = zero_bubble_h2_orders,
};

}  // namespace isobar::schedules

#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

/// Schedules of pipelines whose devices divide the first and the last layer by words of the vocabulary, and have a
/// stage of the others each. Part 0 of a rank is its shard of the first layer, part 1 its stage, and part 2 its shard
/// of the last layer.
///
/// An order repeats an interval: a forward of one unit and a backward of two through part 1, and between two of these
/// the passes through the other parts, which are short. These are in one order on all ranks, since all meet for them.
/// Units only give the order; it works for any times.
namespace isobar::schedules {

/// As 1F1B. After the last stage has forwarded a micro-batch, and before it takes it back, the ranks compute its logits
/// and later the gradients of these: the sums over all ranks that each of them needs have an interval each. So rank r
/// of p holds min(M, p - r + sums) micro-batches in its stage. `sums` is 2, and the gradients are whole backwards; or
/// 1, where ranks compute the gradient of the input before they know the logits of others (sums_loss_with_gradients),
/// and the gradients of the parameters an interval later. O(1) slots.
///
/// Source: Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, 2024.
Order vocabulary_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches, std::uint64_t sums);

std::vector<Order> vocabulary_1_orders(const PipelineShape& shape, const ScheduleChoice& choice);
std::vector<Order> vocabulary_2_orders(const PipelineShape& shape, const ScheduleChoice& choice);

/// All ranks compute the logits of a micro-batch and their gradients at the same time, and wait for each other. Between
/// two such times each has a forward and a backward; neighbours have these in another order. So a micro-batch goes over
/// two ranks in an interval and comes back in two: rank r of p holds min(M, 1 + ceil(3 (p - 1 - r) / 2)) in its stage,
/// half more than under 1F1B. O(1) slots.
///
/// Source: Lin et al., nnScaler, 2024, its interlaced pipeline; as Yeung et al., 2024, have it.
Order interlaced_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches);

std::vector<Order> interlaced_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule interlaced_schedule = {
    .name = "1f1b-interlaced",
    .summary = "1f1b between times at which all devices compute the divided vocabulary layers together",
    .source = "Lin et al., nnScaler (OSDI 2024), 2024",
    .folding = Folding::DividedEnds,
    .make_orders = interlaced_orders,
};

inline constexpr Schedule vocabulary_1_schedule = {
    .name = "1f1b-vocab-1",
    .summary = "1f1b with passes through the divided vocabulary layers between, which meet twice for a micro-batch",
    .source = "Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism (arXiv 2411.05288), 2024",
    .folding = Folding::DividedEnds,
    .make_orders = vocabulary_1_orders,
};

inline constexpr Schedule vocabulary_2_schedule = {
    .name = "1f1b-vocab-2",
    .summary = "the same, meeting once: the gradient of the input is made before the logits of others are known",
    .source = "Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism (arXiv 2411.05288), 2024",
    .folding = Folding::DividedEnds,
    .make_orders = vocabulary_2_orders,
};

}  // namespace isobar::schedules

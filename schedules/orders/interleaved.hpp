#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::schedules {

/// 1F1B over v chunks of layers on each of p devices: part c of rank r is stage c p + r.
///
/// Micro-batches pass in groups of p: forward n of a rank belongs to group g = n div (v p), is of part (n mod v p) div
/// p and of micro-batch g p + n mod p. Backward n is of the same micro-batch, of part v - 1 - that. After a warm-up of
/// min(v M, 2 (p - 1 - r) + (v - 1) p) forwards, forwards and backwards alternate; one part of
/// a micro-batch more than the warm-up is in flight. The idle time is 1F1B's divided by v; each micro-batch crosses
/// v p - 1 cuts each way.
///
/// If M is no multiple of p, the order is that of the next multiple, without the micro-batches beyond M. A
/// shorter last group, which Megatron-LM refuses, would deadlock for some M and be no faster for others.
///
/// O(v p) slots a rank.
/// Source: Narayanan et al., Megatron-LM, 2021, section 2.2.
Order interleaved_order(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches);

/// "chunks" may be left out: the stages say how many. @throws InputError for other "chunks" than those of the stages.
std::vector<Order> interleaved_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule interleaved_schedule = {
    .name = "interleaved",
    .summary = "1f1b with several stages on each device, for less idle time and more transfers",
    .source = "Narayanan et al., Megatron-LM (arXiv 2104.04473), 2021",
    .numbers = {"chunks"},
    .folding = Folding::RoundRobin,
    .make_orders = interleaved_orders,
};

}  // namespace isobar::schedules

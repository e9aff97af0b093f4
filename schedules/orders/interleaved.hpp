#pragma once

#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::schedules {

/// 1F1B over v chunks of layers on each of p devices: part c of rank r is stage c p + r.
///
/// Micro-batches pass in groups of G, and the last group has the rest: each part forwards a group before the next part
/// does, and backwards take the parts in reverse. After a warm-up of min(v M, 2 (p - 1 - r) + (v - 1) G) forwards,
/// forwards and backwards alternate; one part of a micro-batch more than the warm-up is in flight. The idle time is
/// 1F1B's divided by v; each micro-batch crosses v p - 1 cuts each way. With G > p a device computes G - p other
/// micro-batches while one travels from its last device back to its first, and holds (v - 1) (G - p) parts more.
///
/// `group`: G, from p to M; the rest, M mod G, is 0 or at least p. Without it G is p, and if M is no multiple of p, the
/// order is that of the next multiple, without the micro-batches beyond M: a shorter last group, which Megatron-LM
/// refuses, would deadlock for some M and be no faster for others.
///
/// `overlaps`: each forward that alternates with backwards runs together with the one after it (Slot::overlaps). The
/// warm-up is then one part longer, so that the two are of different micro-batches.
///
/// O(v G) slots a rank. @throws std::logic_error for a group out of these limits (why_no_group).
/// Source: Narayanan et al., Megatron-LM, 2021, section 2.2; `group` is its microbatch_group_size_per_vp_stage.
Order interleaved_order(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches,
                        std::optional<std::uint64_t> group = std::nullopt, bool overlaps = false);

/// Why micro-batches cannot pass `ranks` devices in groups of that size, and which sizes are possible; none if they
/// can. O(microbatches) time.
std::optional<std::string> why_no_group(std::size_t ranks, std::uint64_t microbatches, std::uint64_t group);

/// "chunks" may be left out: the stages say how many. "group" is the G above. With "overlap_experts" passes overlap.
/// @throws InputError for other "chunks" than those of the stages, and with why_no_group.
std::vector<Order> interleaved_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule interleaved_schedule = {
    .name = "interleaved",
    .summary = "1f1b with several stages on each device, for less idle time and more transfers",
    .source = "Narayanan et al., Megatron-LM (arXiv 2104.04473), 2021",
    .numbers = {"chunks", "group", overlap_experts_key},
    .folding = Folding::RoundRobin,
    .make_orders = interleaved_orders,
};

}  // namespace isobar::schedules

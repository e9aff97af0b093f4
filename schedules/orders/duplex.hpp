#pragma once

#include "schedules/orders/schedule.hpp"

namespace isobar::schedules {

/// Micro-batches by turns, part by part: all forwards through the first stage of a device, then through its next, and
/// so on; then the backwards, the last stage and the last micro-batch first. While a device computes one micro-batch,
/// the collectives of another run. A device may have any number of stages. Two runs a stage.
///
/// Of several devices with neighbouring stages each, in order, two micro-batches at a time are such a wave, and waves
/// follow 1F1B: the device before p others begins with p forward waves. The last wave of an odd number has one. Six
/// runs at most, of four slots a stage.
///
/// Source: Zhang et al., Accelerating Large-Scale Distributed Neural Network Training with SPMD Parallelism (HiDup),
/// 2022, section 3: two half-batches.
std::vector<Order> duplex_orders(const PipelineShape& shape, const ScheduleChoice& choice);

inline constexpr Schedule duplex_schedule = {
    .name = "duplex",
    .summary = "micro-batches by turns, stage by stage: one computes while others communicate",
    .source = "Zhang et al., HiDup (doi 10.1145/3542929.3563487), 2022",
    .folding = Folding::Any,
    .make_orders = duplex_orders,
};

}  // namespace isobar::schedules

#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"
#include "schedules/orders/list_scheduler.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// Keys of ScheduleChoice::numbers.
inline constexpr auto warm_up_key = "warm_up";
inline constexpr auto chunks_key = "chunks";

/// The choice without what an allocator makes: numbers that are left to it, and orders, which may be those of a plan
/// that the goal was taken from.
ScheduleChoice given_part_of(ScheduleChoice choice);

/// Whether a goal leaves the numbers "warm_up" to the allocator.
bool chooses_warm_up(const Goal& goal);

/// The numbers of stages on each device to try: what the user gave for "chunks", else what the schedule needs.
std::vector<std::size_t> possible_parts(const schedules::Schedule& schedule, const ScheduleChoice& choice);

/// The shape of a pipeline of `ranks` devices with `parts` stages each, folded as the schedule needs.
schedules::PipelineShape folded_shape(const schedules::Schedule& schedule, std::size_t ranks, std::size_t parts,
                                      std::uint64_t microbatches);

/// The most micro-batches in flight on each part of each rank of such a pipeline, by its orders. `choice` has no number
/// that is still to be chosen.
std::vector<std::vector<std::uint64_t>> parts_in_flight(const schedules::Schedule& schedule,
                                                        const ScheduleChoice& choice, std::size_t ranks,
                                                        std::size_t parts, std::uint64_t microbatches);

/// What CostModel counts in place of 1f1b's micro-batches in flight, for a pipeline of at most `ranks` devices under
/// another schedule: entry n - 1 stands for stages with n - 1 stages after them, the last one also for more. Several
/// parts of a device count as one stage with the sum of their activations, rounded up. Never descends.
std::vector<std::uint64_t> held_counts(const schedules::Schedule& schedule, const ScheduleChoice& choice,
                                       std::size_t ranks, std::size_t parts, std::uint64_t microbatches);

/// The numbers "warm_up" for a placement of a stage on each device that hide the delays of its transfers, as far as
/// memory allows (schedules/orders/warm_up.hpp); none if not even one micro-batch fits, or if no stage takes time.
std::optional<std::vector<std::uint64_t>> chosen_warm_up(const schedules::Schedule& schedule, const CostModel& cost,
                                                         const std::vector<StagePlacement>& stages, const Goal& goal);

/// The times of a placement of a stage on each device under a schedule that splits the backward pass. A device has
/// slots for the micro-batches that fit into its memory by the checkers' tolerance, at least 1 and at most all. A hop
/// takes its latency and its data, or nothing where the goal counts no transfers.
schedules::PipelineTimes pipeline_times(const CostModel& cost, const std::vector<StagePlacement>& stages,
                                        const Goal& goal);

}  // namespace isobar::allocators

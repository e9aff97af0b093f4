#pragma once

#include "allocators/allocator.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/plan.hpp"

#include <functional>
#include <vector>

namespace isobar::allocators {

/// Checks that an allocator can place for the schedule and objective of a goal, whatever the inputs are.
/// @throws InputError for a schedule without a recurrence whose objective is not the step, whose orders only a user can
/// give, or whose allocator needs a recurrence; it names the allocators of `all` that do not. Also for a schedule with
/// several stages on a device whose allocator needs one on each; it names the schedules that have it.
void require_plannable(const Goal& goal, const Allocator* allocator, const std::vector<Allocator>& all);

/// The most micro-batches of a step for which allocators plan under a schedule, for a placement on `devices` devices.
std::uint64_t most_microbatches(const ScheduleChoice& schedule, std::size_t devices);

/// Makes plans under a schedule that is none of a chain (ChainSchedule): its name may be any of schedules/orders, its
/// numbers may be left to the allocator.
///
/// `place` solves problems of a chain under 1f1b, in which stages hold as many micro-batches as the schedule has in
/// flight. It gives the devices, their order and, where each has one stage, the layers; several stages on a device are
/// cut by `fold`, which keeps the number of layers of each device where Placement::keeps_counts is set. Otherwise
/// cuts then move by a layer while that makes the step shorter, within a limit on what is played. Counts that
/// depend on the number of devices are first those for as many devices as there are, or half as many again and again
/// while nothing fits; then once those for the number that the placement uses. Numbers to be chosen: "warm_up" is the
/// better one of the schedule's own and chosen_warm_up; "chunks" is 2, 3 or 4. Orders that an allocator makes are those
/// of list_schedule for the placement's times and memory, or of zero-bubble-h1 or -h2 where that is shorter as played;
/// they are placed with the counts of 1f1b. Where nothing fits with them, or with those of a warm-up to be chosen, the
/// placement is one for the least that stages can hold. Each plan is priced by playing (played_plan.hpp); those that
/// exceed a memory or break limits.rules are dropped. limits.start is one of the placements.
///
/// A heuristic, apart from the bound that the plans carry. Limits hold for each search of `place`, except that the time
/// limit is for all of them together. `view` is of `workload`; limits.start has its chain's layers. Deterministic
/// without a time limit.
/// @returns up to limits.candidates plans, the shortest step first, or one without stages and with a reason; all
/// without the allocator's name and search time. @throws InputError for numbers of which no placement has as many
/// devices, and for more than most_microbatches.
std::vector<Plan> plans_by_playing(const std::function<Placement(const Problem&)>& place, const Workload& workload,
                                   const ChainView& view, const Cluster& cluster, const Goal& goal,
                                   const SearchLimits& limits);

}  // namespace isobar::allocators

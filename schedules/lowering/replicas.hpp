#pragma once

#include "core/order/microbatch_pattern.hpp"
#include "core/order/order.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace isobar::schedules {

/// The stages of the pipeline of a plan with stages, in the order of the chain: neighbouring ones of the plan on the
/// same devices are one where its schedule has a stage on each device, or where a file has them as one.
/// @returns for each, the first and the last stage of the plan.
std::vector<std::pair<std::size_t, std::size_t>> stages_of_pipeline(const Plan& plan);

/// By stage, which replica takes which micro-batch. The counts of a stage's replicas are all of the step's
/// micro-batches.
/// @throws InputError as MicrobatchPattern does, naming stages[i].replicas.
std::vector<MicrobatchPattern> microbatch_patterns(const Plan& plan);

/// The orders of a plan's devices, by rank.
///
/// Replicas that pass micro-batches to each other form a pipeline. Where it has one replica of each stage, its devices
/// are a chain as without replicas; under a schedule with one stage on each device, neighbouring stages on a device
/// count as one. Elsewhere a replica orders its work
/// as if the stages before and after it had as many devices as hold the micro-batches that it takes: (its part of the
/// pipeline's micro-batches) x (their replicas); or more after it, until no replica waits for a micro-batch that a
/// stage before forwards only after a backward that waits for this replica.
///
/// Listed orders name the first device of each stage, the first shard of its first replica; those of other replicas and
/// shards do what it does.
///
/// @throws InputError as Schedule::orders does; and with replicas, for a device with two replicas of a stage or in two
/// pipelines, a pipeline that is no chain under a schedule with several stages on each device or with listed orders,
/// and listed orders for pipelines with unequal numbers of micro-batches.
std::vector<Order> orders_of(const Plan& plan);

/// A pipeline and the order of each of its devices.
struct OrderedPipeline {
  PipelineShape shape;
  std::vector<Order> orders;  ///< by rank of the shape; of its stages, also where each of their layers is a part
};

/// The pipeline of the first replicas, which all others are like.
/// @throws InputError as orders_of does, and for replicas whose pipelines differ.
OrderedPipeline first_pipeline_of(const Plan& plan);

/// The orders of a plan that has only the first replicas of another one, maybe one of each stage (fold.hpp).
std::vector<Order> orders_of_first(const Plan& plan);

}  // namespace isobar::schedules

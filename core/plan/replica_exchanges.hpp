#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/shard_collectives.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Plans whose replicas bring each other what a layer needs, in groups of neighbouring ones: those that divide
/// sequences (Plan::context), of which a micro-batch of the plan is a part of the workload's, and those that divide
/// experts (Plan::experts). A group takes one micro-batch after another together, and each layer is a stage.
namespace isobar {

/// Whether replicas divide sequences or experts.
bool has_exchanges(const Plan& plan);
bool has_exchanges(const Workload& workload);
/// The fewest neighbouring replicas, from the first of a stage on, that exchange nothing with others for their passes.
std::size_t replicas_that_meet(const Workload& workload);

/// How many micro-batches of whole sequences a step of a plan has. Micro-batch m of the plan is part m modulo
/// ContextParallelism::degree of those of the m / degree-th.
std::uint64_t whole_microbatches(const Plan& plan);

/// What keeps the replicas of a plan from dividing sequences as it says; none if nothing does, or it says nothing.
std::optional<std::string> fault_of_context(const Plan& plan);
/// The same of experts.
std::optional<std::string> fault_of_experts(const Plan& plan);
/// What keeps passes from running together as "overlap_experts" of a schedule says; none if nothing does, or it says
/// nothing. `software`: the training software, if there is one.
std::optional<std::string> fault_of_overlap(const ScheduleChoice& schedule, const ExpertParallelism& experts,
                                            const std::vector<std::size_t>& recompute, const Framework* software);
/// The same of a plan.
std::optional<std::string> fault_of_overlap(const Plan& plan);
/// Why replicas that have the same experts cannot divide what Plan::sync says of these; none if they can.
std::optional<std::string> why_copies_are_not_divided(const Plan& plan);

/// Why the sequences of a workload cannot be divided as a plan says; none if they can.
std::optional<std::string> why_not_divided(const Workload& workload, const Plan& plan);
/// The same of experts.
std::optional<std::string> why_experts_are_not_divided(const Workload& workload, const Plan& plan);

/// Whether shards of several replicas meet along an axis.
constexpr bool is_among_replicas(GridAxis axis)
{
  return axis >= GridAxis::Context;
}
/// How many neighbouring replicas meet along such an axis.
std::size_t replicas_along(GridAxis axis, const Workload& workload);

/// The collectives among the devices of groups of replicas for one layer, whose replicas have `shards` shards each:
/// those of attention, and those of experts, among which are some of the shards of a replica. Those before a pass
/// follow those of its shards, and those after a pass come before them.
std::vector<ShardCollective> replica_collectives(const Workload& workload, std::size_t layer, std::size_t shards);

/// How the devices of a group in these sites do what they do together. Keys and values that go around, do so in a ring.
Algorithm algorithm_of_group(GridAxis axis, const ContextParallelism& context, Algorithm of_replicas,
                             const std::vector<std::string>& sites);

/// How many replicas of a stage have the same experts: all, if none are divided.
std::size_t copies_of_experts(const ExpertParallelism& experts, std::size_t replicas);

}  // namespace isobar

#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/shard_collectives.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

/// Plans whose replicas divide sequences (Plan::context): each next `degree` replicas of a stage are a group, which
/// takes one micro-batch after another together. A micro-batch of the plan is then a part of the workload's, and each
/// layer is a stage.
namespace isobar {

/// What keeps the replicas of a plan from dividing sequences as it says; none if nothing does, or it says nothing.
std::optional<std::string> fault_of_context(const Plan& plan);

/// Why the sequences of a workload cannot be divided as a plan says; none if they can.
std::optional<std::string> why_not_divided(const Workload& workload, const Plan& plan);

/// The collectives among the devices of a group for one layer: one shard of each of its replicas, which are `shards`
/// each. None for layers without attention. Those before a pass follow those of its shards, and those after a pass come
/// before them.
std::vector<ShardCollective> context_collectives(const Workload& workload, std::size_t layer, std::size_t shards);

/// How the devices of a group in these sites do what they do together. Keys and values that go around, do so in a ring.
Algorithm algorithm_of_context(const ContextParallelism& context, Algorithm of_replicas,
                               const std::vector<std::string>& sites);

}  // namespace isobar

#pragma once

#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <string>
#include <vector>

/// The ranks of a plan: one for each device, numbered by its first appearance in the stages, then the data server.
namespace isobar::exec {

/// Devices of all ranks, by rank.
std::vector<std::string> devices_of_ranks(const Plan& plan);
/// Names of all ranks in messages: "rank 1 (b)" by its device, "rank 2 (data server)".
std::vector<std::string> names_of_ranks(const Plan& plan);

/// The shards of stages that a rank has, in the order of the stages; none of the data server.
std::vector<PlacedShard> shards_of_rank(const Plan& plan, std::size_t rank);
/// The rank that tells the loss: that of the first shard of the plan's last stage, or rank 0 if devices divide
/// operators.
std::size_t rank_of_loss(const Plan& plan);

}  // namespace isobar::exec

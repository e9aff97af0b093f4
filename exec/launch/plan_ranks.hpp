#pragma once

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

/// The stages of a rank, in the order of the plan; none of the data server.
std::vector<std::size_t> stages_of_rank(const Plan& plan, std::size_t rank);
/// The rank that holds the plan's last stage, and so has the loss.
std::size_t rank_of_last_stage(const Plan& plan);

}  // namespace isobar::exec

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "schedules/lowering/folded_links.hpp"
#include "schedules/lowering/folded_program.hpp"
#include "schedules/lowering/places.hpp"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// Folds a plan in one way. Internal to schedules/lowering.
namespace isobar::schedules {

/// The program and the links whose bandwidth is to be divided.
using FoldedParts = std::pair<std::unique_ptr<Program>, std::vector<LinkUsers>>;

/// A plan whose ranks `acting` act for all others, or why their flows are not those of the whole plan.
/// O(stages x devices + flows of a step's channels x links).
std::variant<FoldedParts, std::string> fold_so(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                               const Places& places, KnownPaths& paths, const Acting& acting);

}  // namespace isobar::schedules

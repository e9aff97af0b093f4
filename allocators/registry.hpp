#pragma once

#include "allocators/allocator.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar::allocators {

/// Every allocator, sorted by name.
const std::vector<Allocator>& allocators();

/// @throws InputError unless `name` is an allocator's (naming the nearest one) or "exec:PROGRAM".
void require_allocator(const std::string& name);

/// @throws InputError naming `option` unless `name` is an allocator that improves plans; its message names those that
/// do.
void require_improver(const std::string& option, const std::string& name);

/// Makes a plan: runs the allocator `name` (or the program behind "exec:PROGRAM", see external.hpp), adds the claims by
/// the cost model and the best bound known, and passes the plan through the checker.
/// @throws InputError for an unknown name (with the nearest one), for a start whose cuts the chain does not have, or
/// for an external program's bad answer; EnvironmentError when an external program fails; std::logic_error when a
/// allocator of ours breaks the checker.
Plan allocate(const std::string& name, const Workload& workload, const Cluster& cluster, const Goal& goal,
              const SearchLimits& limits);

/// The same for the best few placements that the allocator found, each made and checked as by allocate(), best first:
/// at least one and at most SearchLimits::candidates, more than one with objective `step` alone.
std::vector<Plan> allocate_candidates(const std::string& name, const Workload& workload, const Cluster& cluster,
                                      const Goal& goal, const SearchLimits& limits);

/// The placement of a plan with the claims for another goal, and the bound that needs no search. None where the plan
/// has no stages, or where they need more memory for that goal than their devices have. The plan is one of `allocate`
/// for this workload and cluster.
std::optional<Plan> carry_over(const Plan& plan, const Workload& workload, const Cluster& cluster, const Goal& goal);

/// Gives a plan the bound of another one for the same goal, workload and cluster, with its certificate, if it is
/// higher. A plan that meets its bound then is optimal.
void adopt_bound(Plan& plan, const Plan& other);

}  // namespace isobar::allocators

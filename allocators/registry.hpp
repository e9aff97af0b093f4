#pragma once

#include "allocators/allocator.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::allocators {

/// Returns all allocators, sorted by name.
const std::vector<Allocator>& allocators();

/// Checks the name of an allocator.
/// @throws InputError with the nearest name, unless `name` is an allocator or "exec:PROGRAM".
void require_allocator(const std::string& name);

/// Whether an allocator is registered with a property, such as Allocator::takes_window. An external program has none.
bool has_property(const std::string& name, bool Allocator::*property);
/// The names of the allocators with a property, sorted.
std::vector<std::string_view> names_with(bool Allocator::*property);
/// Checks that one of several allocators has a property, as `option` requires.
/// @throws InputError from `option` otherwise; it names the allocators that do.
void require_property(bool Allocator::*property, const std::string& option, const std::vector<std::string>& names);

/// Checks that the allocator `name`, or a program of "exec:PROGRAM", plans under the schedule and objective of a goal,
/// whatever the inputs are.
/// @throws InputError "schedule: …", "allocator: …" or "objective: …"; it names the alternatives.
void require_schedule(const std::string& name, const Goal& goal);

/// Whether the plans of a registered allocator may have several replicas of a stage.
bool places_replicas(const std::string& name);

/// What an allocator plans with where the user requests nothing else.
struct Defaults {
  Goal goal;
  std::string recompute = "none";  ///< as --recompute takes it
};
/// The defaults of the objective; of allocators that place layers on one device and its machine, one micro-batch under
/// gpipe (objective step) and recomputation of the inner layers; of those that honour `offload`, gpipe and the same.
Defaults defaults_of(const std::string& name, Objective objective, bool offload);

/// Makes a plan with the allocator `name`, or with the program of "exec:PROGRAM" (external.hpp). Adds the claims of the
/// cost model and the best known bound, and passes the plan through the checker. Under a schedule that is none of a
/// chain the claims come from playing the plan's Program (other_schedules.hpp).
///
/// @throws InputError for an unknown name (with the nearest one), for a schedule that is unknown, does not take its
/// numbers or that the allocator cannot place for, for a start whose cuts the chain does not have, or for an external
/// program's bad answer; EnvironmentError when an external program fails; std::logic_error when the
/// checker rejects the plan of a built-in allocator.
Plan allocate(const std::string& name, const Workload& workload, const Cluster& cluster, const Goal& goal,
              const SearchLimits& limits);

/// Makes a plan by an allocator that is not registered, such as one of a program that links this library. Everything
/// else is as above.
Plan allocate(const Allocator& allocator, const Workload& workload, const Cluster& cluster, const Goal& goal,
              const SearchLimits& limits);

/// Makes plans of the best placements that the allocator found, best first, each checked as by allocate(). Returns 1 to
/// SearchLimits::candidates plans, more than one only with objective `step`. Throws as allocate() does.
std::vector<Plan> allocate_candidates(const std::string& name, const Workload& workload, const Cluster& cluster,
                                      const Goal& goal, const SearchLimits& limits);

/// Returns the placement of a plan with the claims for another goal, and with the bound that needs no search. None for
/// objective dtfm, when the plan has no stages, when they need more memory for that goal than their devices have, or
/// when one of the two schedules is none of a chain (ChainSchedule). The plan must come from `allocate` for this
/// workload and cluster.
std::optional<Plan> carry_over(const Plan& plan, const Workload& workload, const Cluster& cluster, const Goal& goal);

/// The placement of a plan, which allocate() made for objective `step` and other work of the same layers or other
/// speeds of the same devices, with the claims that it has here. Infeasible, with the reason, if it does not fit in
/// memory.
Plan priced_for(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// Gives a plan the bound and certificate of another plan for the same goal, workload and cluster, if that bound is
/// higher. A plan that then meets its bound becomes optimal. For objective dtfm, only between plans of the same stages
/// with as many replicas; a bound by loads only between plans of the same schedule, if it holds of that plan, too.
void adopt_bound(Plan& plan, const Plan& other);

}  // namespace isobar::allocators

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar {

/// Verifies every claim of a chain (is_chain) with an evaluator of its own, which shares no code with the cost model.
/// `workload` must have the plan's recomputation and micro-batch.
///
/// Checks the placement: every layer exactly once and in order, devices that exist and are used once, stages that fit
/// in memory under the schedule. Checks that predicted times, objective, step bound and memory are right to 1e-9
/// relative, and that the bound is not above the objective. A simulated step is only compared with the step bound. A
/// plan without a placement (infeasible, or its search timed out first) needs a reason and no stages.
///
/// Of a plan that is no chain it checks the placement and the schedule's numbers; `faults_of_played`
/// (core/check/played_checker.hpp) checks times, bounds and memory.
/// @returns one line per fault, without a place; empty if the plan holds. O(layers + stages).
std::vector<std::string> faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// Checks only the placement: every layer exactly once and in order, each device once under a schedule of chains, at
/// least one micro-batch, the schedule's numbers, and the system. Without a cluster, any device may exist, in a machine
/// with a disk, and any system.
std::vector<std::string> placement_faults_of(const Plan& plan, const Workload& workload);
std::vector<std::string> placement_faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar

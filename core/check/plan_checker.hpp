#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar {

/// Recomputes everything that a plan says, of the workload with the plan's recomputation and micro-batch, with an
/// evaluator of its own, which shares no code with the cost model: every layer exactly once and in order, devices exist
/// and are used once, memory holds under the schedule, predicted times, objective, step bound and memory as claimed to
/// 1e-9 relative, the bound not above the objective. A simulated step is only compared with the step bound. An
/// infeasible plan, and one whose search timed out before any was found, needs a reason and no stages.
/// @returns one line per fault, "" prefixes left to the caller; empty when the plan holds. O(layers + stages).
std::vector<std::string> faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The same of the placement alone: every layer exactly once and in order, each device once, a micro-batch at least.
std::vector<std::string> placement_faults_of(const Plan& plan, const Workload& workload);

}  // namespace isobar

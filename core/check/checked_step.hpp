#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/steps/planned_step.hpp"

#include <vector>

namespace isobar {

/// The step that a plan claims (predicted.step_time_s) if play_step gives the same but for rounding; else what it
/// gives.
///
/// Flows of unequal weight over one link pass on each delay larger than it was, so a step may depend on the last digits
/// of its times: by 0.6 % after 512 micro-batches on `geo_12regions`. Where the claim differs by more than
/// claim_tolerance, computations that take a few 1e-15 more or less show by how much rounding moves the step. The claim
/// may be off by 100 times that, at most by 2 %.
double checked_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                    const std::vector<std::vector<StagePass>>& passes);

}  // namespace isobar

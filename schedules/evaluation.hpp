#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <memory>

namespace isobar::schedules {

/// Makes the forward-only Program of an evaluation: the forwards and activation transfers of each step of
/// `make_program`, without keeping activations for a backward pass.
///
/// Each stage works on the micro-batches in their order, whatever the plan's schedule. A device with several stages
/// takes as many of the step's micro-batches as the plan has devices through one stage, then through its next.
///
/// The plan must be checked and feasible. Keeps no reference to its arguments. O(stages + layers) time and memory, and
/// devices x stages of devices that have several; with replicas, M x stages of those.
std::unique_ptr<Program> make_evaluation_program(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar::schedules

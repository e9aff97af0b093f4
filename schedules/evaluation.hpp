#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <memory>

namespace isobar::schedules {

/// Makes the forward-only Program of an evaluation: the forwards and activation transfers of each step of
/// `make_program`, in the order of the micro-batches, without keeping activations for a backward pass.
///
/// The plan must be checked and feasible. Keeps no reference to its arguments.
std::unique_ptr<Program> make_evaluation_program(const Plan& plan, const Workload& workload);

}  // namespace isobar::schedules

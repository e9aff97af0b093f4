#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <memory>

namespace isobar::schedules {

/// A plan's pipeline forward alone, as an evaluation takes it: of each step `make_program`'s forwards and the transfers
/// of activations, micro-batches in their order, with nothing kept for a backward pass. The plan is checked and
/// feasible. Keeps no reference to its arguments.
std::unique_ptr<Program> make_evaluation_program(const Plan& plan, const Workload& workload);

}  // namespace isobar::schedules

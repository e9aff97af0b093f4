#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <memory>

namespace isobar::schedules {

/// The Program of a checked, feasible plan. Rank i runs stage i; rank S, where the plan names one, is the data server.
/// O(stages + layers) time and memory, however many micro-batches. Keeps no reference to its arguments.
std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload);

}  // namespace isobar::schedules

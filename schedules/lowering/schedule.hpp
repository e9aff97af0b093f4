#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <memory>

namespace isobar::schedules {

/// Makes the Program of a checked, feasible plan. Rank i runs stage i; rank S is the data server, if the plan names
/// one. O(stages + layers) time and memory, independent of the number of micro-batches. Keeps no reference to its
/// arguments.
std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload);

}  // namespace isobar::schedules

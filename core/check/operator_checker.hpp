#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <string>
#include <vector>

namespace isobar {

/// Verifies the claims of a plan whose devices divide operators (core/plan/operator_plan.hpp), by sums of its own over
/// the graph and by playing its Program. `faults_of` must have found no fault in its placement.
///
/// Checks that each rank computes its part of every operator, holds its part of every parameter, and takes part in each
/// reform and its conjugate as often as the step needs them, with the bytes of its forms; that every device has the
/// memory; and that predicted times, objective, bounds and memory are right to 1e-9 relative.
/// @returns one line per fault, without a place.
/// @throws InputError for a program that deadlocks or is too long to be played.
std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                             const Program& program);

}  // namespace isobar

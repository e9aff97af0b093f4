#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"

#include <string>
#include <vector>

namespace isobar {

/// Verifies the claimed times and memory of a plan that is no chain (is_chain). `faults_of` must have found no fault in
/// its placement. Memory is that of its Program, played once with nominal rates (core/program/player.hpp). The
/// step is played from the plan, by code of the checker's own (checked_step).
///
/// Checks that the Program's work is that of the workload's layers, that every device holds the most that the Program
/// allocates, and that predicted times, objective, bounds and memory are right to 1e-9 relative. The step bound
/// holds for every order of the same work on these devices: the first device waits for its input, computes all
/// micro-batches, and the last gradient travels back; a micro-batch passes through all stages and back while the
/// busiest lane works on the others (docs/costs.md).
/// @returns one line per fault, without a place; empty if the claims hold or the plan is a chain or has no stages.
/// @throws InputError for a program that deadlocks or is too long to be played.
///
/// `folded`: of a Program that is too long to be played, what a play says in which some of several equal devices act
/// for all; null: the Program is played.
std::vector<std::string> faults_of_played(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                          const Program& program, const PlayedProgram* folded = nullptr);

}  // namespace isobar

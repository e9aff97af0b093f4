#pragma once

#include "allocators/allocator.hpp"

#include <string>
#include <vector>

namespace isobar::allocators {

/// What a program answered: a chain with a device for each stage, or stages with replicas.
struct ExternalAnswer {
  std::string program;  ///< "exec:PROGRAM", which names it in faults
  Outcome outcome = Outcome::Feasible;
  std::string reason = {};
  std::vector<StagePlacement> chain = {};
  /// Instead, stages of the workload's layers with what isobar-plan/2 says of them: sync, transfers and system.
  Plan plan = {};
};

/// Runs a program that places the layers: "exec:PROGRAM" (docs/own_allocator.md). PROGRAM is a path or a name on PATH,
/// without arguments.
///
/// The program reads one JSON object from its standard input (schema isobar-problem/1: "cluster", "workload", "goal",
/// "limits"). It writes one with "stages" to its standard output, as in a plan file. "outcome" and "reason" are
/// optional. The outcome is feasible, infeasible, timed_out or optimal; optimal counts as feasible until our own bound
/// proves it. Stages may have replicas and residences, as in isobar-plan/2, and "sync", "transfers" and "system" then
/// count. Other keys of a plan file are allowed and ignored: every claim is computed here, and which layers recompute
/// is the problem's. Stages number the layers of the problem's chain, or, in a plan file (with "schema"), those of the
/// workload whose chain `view` is.
///
/// The program is killed at the time limit, by default after 300 s. It decides what to do with budget and seed.
/// Deterministic when the program is.
///
/// @throws InputError "exec:PROGRAM…" when the answer is not a placement; EnvironmentError when the program cannot be
/// started, crashes or runs out of time; Interrupted when the process was asked to stop.
ExternalAnswer ask_program(const std::string& program, const Problem& problem, const ChainView& view);

/// The chain of an answer as a placement. One that needs more memory than a device has is infeasible; the reason names
/// the stage.
Placement placement_of(const ExternalAnswer& answer, const Problem& problem);

/// The stages with replicas of an answer as a plan under the goal's schedule. @throws InputError "exec:PROGRAM: …" for
/// stages that are no placement of the chain.
Proposals proposals_of(const ExternalAnswer& answer, const HybridProblem& problem);

}  // namespace isobar::allocators

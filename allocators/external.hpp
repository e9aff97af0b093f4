#pragma once

#include "allocators/allocator.hpp"

#include <string>

namespace isobar::allocators {

/// Runs a program that places the layers: "exec:PROGRAM" (docs/own_allocator.md). PROGRAM is a path or a name on PATH,
/// without arguments.
///
/// The program reads one JSON object from its standard input (schema isobar-problem/1: "cluster", "workload", "goal",
/// "limits"). It writes one with "stages" to its standard output, as in a plan file. "outcome" and "reason" are
/// optional. The outcome is feasible, infeasible, timed_out or optimal; optimal counts as feasible until our own bound
/// proves it. Other keys of a plan file are allowed and ignored: every claim is computed here.
///
/// The program is killed at the time limit, by default after 300 s. It decides what to do with budget and seed.
/// Deterministic when the program is. A placement that needs more memory than a device has is infeasible; the reason
/// names the stage.
///
/// @throws InputError "exec:PROGRAM…" when the answer is not a placement; EnvironmentError when the program cannot be
/// started, crashes or runs out of time; Interrupted when the process was asked to stop.
Placement place_externally(const std::string& program, const Problem& problem);

}  // namespace isobar::allocators

#pragma once

#include "allocators/allocator.hpp"

#include <string>

namespace isobar::allocators {

/// Lets a program place the layers: "exec:PROGRAM" (docs/allocators.md). PROGRAM is a path or a name on PATH, without
/// arguments.
///
/// It reads one JSON object (schema isobar-problem/1: "cluster", "workload", "goal", "limits") from its standard input
/// and writes one with "stages" to its standard output, as in a plan file; "outcome" (feasible, infeasible, timed_out,
/// or optimal, which counts as feasible until a bound of ours says so) and "reason" may be left out, the other keys of
/// a plan file are allowed and not looked at: every claim is computed here. It is killed at the time limit, 300 s
/// without one; its budget and seed are its own affair. Deterministic when the program is.
/// A placement that needs more memory than a device has is infeasible, with the stage as its reason.
///
/// @throws InputError "exec:PROGRAM…" when it answers what is no placement; EnvironmentError when it cannot be started,
/// crashes or runs out of time; Interrupted when the process was asked to stop.
Placement place_externally(const std::string& program, const Problem& problem);

}  // namespace isobar::allocators

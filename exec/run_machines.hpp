#pragma once

#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/run_command_options.hpp"

#include <string>

namespace isobar::exec {

/// Sets `run.machines` from the platform of --platform, which `isobar platform show` reads. For --emulate: a plan whose
/// stages live elsewhere than on their devices needs it.
/// @throws InputError naming --platform or its file; EnvironmentError when isobar is missing.
void set_machine_rates(const Plan& plan, RunCommandOptions& options);

/// Checks that this machine, or the control group of this process, has so much memory available for ranks on its
/// processor. `who_needs`: for messages, such as "the plan needs". @throws EnvironmentError.
void require_memory(const std::string& who_needs, Bytes needed);

/// Checks that this machine has the memory and the disk for what the ranks that run here hold there, before any of it
/// is taken. @throws EnvironmentError.
void require_machine(const Program& program, const RunCommandOptions& options);

}  // namespace isobar::exec

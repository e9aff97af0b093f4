#pragma once

#include "core/errors.hpp"
#include "exec/run_command_options.hpp"

/// `isobar-exec run --mix`.
namespace isobar::exec {

/// Runs the jobs of a mix, each in its turns. A job that fails is named on standard error, and leaves its devices to
/// the others, whose results are written.
/// @returns the exit code of the first job that failed; Done if none did.
/// @throws InputError naming the option, the mix or a file of one of its jobs.
ExitCode run_mix_of_jobs(const RunCommandOptions& options);

}  // namespace isobar::exec

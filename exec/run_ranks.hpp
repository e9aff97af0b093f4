#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/launch/launch.hpp"
#include "exec/run/run.hpp"
#include "exec/run_command_options.hpp"

#include <optional>
#include <string>

/// Which rank of a run this process is.
namespace isobar::exec {

/// The place of a process that a launcher or --rank, --world and --master started; none with --spawn, --in-process or
/// --ranks. Prints it.
/// @throws InputError when neither options nor a launcher place the ranks; and what launch_place throws.
std::optional<LaunchPlace> launched_place(const RunCommandOptions& options);

/// Meets the other ranks of a launched run, and returns this rank's place among them.
/// @throws as `meet` does.
RankPlace meet_others(const LaunchPlace& place, const RunCommandOptions& options, const Plan& plan,
                      const Workload& workload, const std::string& workload_hash);

/// The place of a rank that is given by --rank and --ranks. @throws InputError naming the option.
RankPlace listed_place(const RunCommandOptions& options, const Program& program);

}  // namespace isobar::exec

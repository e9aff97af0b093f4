#pragma once

#include "core/plan/plan.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/durable_files.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/launch/launch.hpp"
#include "exec/run_command_options.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

/// How a run begins: at step 0, or at a checkpoint of the same run.
namespace isobar::exec {

/// JSON object of everything, besides the program, that determines a run's loss curve; files by their hashes. A run
/// only resumes from checkpoints with an equal one.
std::string run_identity(const RunCommandOptions& options, const Plan& plan, const std::string& workload_hash,
                         const std::optional<Weights>& weights);

/// Locks the folder of checkpoints against other runs: rank 0 holds it for all ranks. Null on other ranks, or without
/// --checkpoint.
/// @throws EnvironmentError when the folder cannot be written, and as FolderLock does.
std::unique_ptr<FolderLock> lock_checkpoints(const RunCommandOptions& options,
                                             const std::optional<LaunchPlace>& launched);

/// With --resume, the newest valid checkpoint, whose step it stores in `options.run`; none when the run begins at step
/// 0. Prints which one it is and those that it skips.
/// @throws InputError when the folder holds checkpoints but --resume is missing, when none of them is valid, and when
/// the newest belongs to another run or has another number of layers.
std::optional<Checkpoint> checkpoint_to_resume(RunCommandOptions& options, std::size_t layers);

}  // namespace isobar::exec

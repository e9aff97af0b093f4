#pragma once

#include "core/errors.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): as the library has it
class App;
}  // namespace CLI

namespace isobar::exec {

/// What is to become of a run that fails.
struct RestartOptions {
  std::uint64_t restarts = 0;  ///< how often it is started again
  std::string replan;  ///< file of the plan's platform: then it goes on without the lost device; "": it does not
};

/// --restart and --replan.
void add_restart_options(CLI::App& command, RestartOptions& options);

/// A run as its attempts share it.
struct RestartedRun {
  std::string workload;     ///< file
  std::string plan;         ///< file
  std::string checkpoints;  ///< folder; "": each attempt begins at step 0
  bool resume = false;      ///< the first attempt, too, goes on from the newest checkpoint
  /// What every attempt reads; "" is no file.
  std::vector<std::string> inputs;
};

/// Runs `attempt` by a plan file, again where it fails as far as the options say so (supervisor.hpp), and by a new plan
/// once that has not helped (replan.hpp). Without either the attempt is made here and now, else in child processes.
/// @throws InputError for an input that can be read only once, such as a pipe.
ExitCode run_restarted(const RestartOptions& options, RestartedRun run,
                       const std::function<ExitCode(const std::string& plan, bool resume)>& attempt);

}  // namespace isobar::exec

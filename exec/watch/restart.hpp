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

/// What to do when a run fails.
struct RestartOptions {
  std::uint64_t restarts = 0;  ///< how often it is started again
  std::string replan;          ///< file of the plan's platform, to continue without the lost device; "": do not
};

/// Adds --restart and --replan.
void add_restart_options(CLI::App& command, RestartOptions& options);

/// What the attempts of a run share.
struct RestartedRun {
  std::string workload;     ///< file
  std::string plan;         ///< file
  std::string checkpoints;  ///< folder; "": each attempt begins at step 0
  bool resume = false;      ///< the first attempt also continues from the newest checkpoint
  /// Files that every attempt reads; "" stands for none.
  std::vector<std::string> inputs;
};

/// Runs `attempt` with a plan file. Repeats it when it fails, as often as the options allow (supervisor.hpp), then
/// continues with a new plan (replan.hpp). Without either option the attempt runs in this process, else in child
/// processes. @throws InputError for an input that can be read only once, such as a pipe.
ExitCode run_restarted(const RestartOptions& options, RestartedRun run,
                       const std::function<ExitCode(const std::string& plan, bool resume)>& attempt);

}  // namespace isobar::exec

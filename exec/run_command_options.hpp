#pragma once

#include "core/units.hpp"
#include "exec/data/dataset.hpp"
#include "exec/files/step_log.hpp"
#include "exec/launch/launch_options.hpp"
#include "exec/links/deadlines.hpp"
#include "exec/run/run.hpp"
#include "exec/watch/restart.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isobar::exec {

/// Options of `isobar-exec run` as given. `run` holds those that need no conversion; the functions below fill in the
/// rest.
struct RunCommandOptions {
  std::string workload;
  WorkloadSettings settings;
  std::string plan;
  std::string mix;                   ///< file; then there is neither workload nor plan
  std::string worker;                ///< of a plan of rounds: its name
  std::vector<std::string> workers;  ///< of such a plan: addresses
  std::optional<std::uint64_t> rounds;
  std::optional<std::string> processes;
  bool spawn = false;
  bool in_process = false;
  std::optional<std::size_t> rank;
  std::vector<std::string> ranks;
  LaunchOptions launch;
  std::string profile;
  std::string platform;
  bool unvalidated = false;
  std::string device = "cpu";
  std::optional<std::string> transport;
  std::optional<std::string> deadline;
  std::optional<std::string> heartbeat;
  RestartOptions restart;
  std::string trace;
  StepLogOptions log;
  std::string output;
  bool json = false;
  DataOptions data;
  std::string weights;
  std::string checkpoint_every;
  bool resume = false;
  RunOptions run;
};

/// Adds the options to the command. `options` must outlive it.
void add_run_options(CLI::App& command, RunCommandOptions& options);

/// Text of the error when the options do not choose exactly one place for the ranks.
extern const char* const places_of_ranks;

/// @throws InputError unless there are a workload and a plan, or a mix.
void check_run_inputs(const RunCommandOptions& options);

/// Checks each option and those that exclude or require each other. @throws InputError naming the option.
void check_run_options(const RunCommandOptions& options);

/// Sets `run.transport`, once `run.device` is set. @throws InputError naming --transport.
void set_transport(RunCommandOptions& options);

/// Sets the interval of checkpoints: "100" is a number of steps, "5 min" a time. @throws InputError naming the option.
void set_checkpoint_interval(RunCommandOptions& options);

/// Time limits of a run whose steps are predicted to take `step`, with --deadline and --heartbeat. @throws InputError
/// naming the option.
TimeLimits time_limits_of(Seconds step, const RunCommandOptions& options);

/// Files that the run reads; "" for those that are not given.
std::vector<std::string> inputs_of(const RunCommandOptions& options);

/// Text of the options that must be equal on all ranks, files by their hashes. Call it when `run` is complete.
std::string settings_of(const RunCommandOptions& options);

}  // namespace isobar::exec

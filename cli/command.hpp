#pragma once

#include "allocators/allocator.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/progress_line.hpp"
#include "core/errors.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"
#include "sim/platform/platform.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// What a subcommand does once its options are read; returns the exit code.
using Action = std::function<ExitCode()>;

/// Each adds one subcommand to `app`; when the user chose it, `action` is set to what it does.
void add_plan_command(CLI::App& app, Action& action);
void add_simulate_command(CLI::App& app, Action& action);
void add_compare_command(CLI::App& app, Action& action);
void add_sweep_command(CLI::App& app, Action& action);
void add_check_command(CLI::App& app, Action& action);
void add_list_command(CLI::App& app, Action& action);
void add_platform_command(CLI::App& app, Action& action);
void add_workload_command(CLI::App& app, Action& action);
void add_trace_command(CLI::App& app, Action& action);
void add_verify_command(CLI::App& app, Action& action);
void add_validate_command(CLI::App& app, Action& action);
void add_report_command(CLI::App& app, Action& action);
void add_plot_command(CLI::App& app, Action& action);
/// Those that isobar-exec does: run, profile, doctor, export.
void add_executor_commands(CLI::App& app, Action& action);

/// Runs isobar-exec with these arguments to its end, and returns its exit code; unless that is Done it has said why on
/// stderr. What it prints to stdout is dropped. @throws EnvironmentError when it dies of a signal.
ExitCode run_executor(const std::vector<std::string>& arguments);

/// PLATFORM, WORKLOAD and --devices, as most commands take them.
struct InputOptions {
  std::string platform;
  std::string workload;
  std::string devices;
  std::string profile;

  void add_to(CLI::App& command);
};

/// A platform with the devices file that was named, if any. `left_out`: see sim::Platform::load.
sim::Platform load_platform(const std::string& file, const std::string& devices_file,
                            const std::vector<std::string>& left_out = {});

/// Says on standard error what of the platform file is not taken.
void say_notes(const sim::Platform& platform);

/// A platform and a workload, read and checked, the workload with the recomputation that was asked for.
struct Inputs {
  sim::Platform platform;
  Workload workload;
  Fingerprint platform_fingerprint;
  Fingerprint workload_fingerprint;
  std::optional<Fingerprint> profile_fingerprint;  ///< where times were measured
  std::optional<std::string> devices_file;         ///< where one was named

  /// Every file that was read.
  std::vector<std::string> files() const;
};
/// Stands for the profile where times are work over nominal speed.
inline const Fingerprint unmeasured{"no profile", "none"};

/// What to plan for and how far to search, as `plan` and `compare` take it.
struct GoalOptions {
  std::optional<std::string> communication;
  std::optional<std::string> schedule;
  std::optional<std::uint64_t> microbatches;
  std::optional<std::uint64_t> budget;
  std::optional<std::string> time_limit;
  std::uint64_t seed = 1;
  bool polish = false;
  std::string recompute = "none";
  std::optional<std::uint64_t> global_batch;

  void add_to(CLI::App& command);
  /// --global-batch, which not every command takes.
  void add_global_batch_to(CLI::App& command);
  /// The goal for an objective: what was said, and the objective's own defaults for the rest.
  Goal goal(const std::string& objective) const;
  allocators::SearchLimits limits() const;
  /// @throws InputError when --polish is on and one of the allocators does not go with it.
  void check_polish(const std::vector<std::string>& allocators) const;
};

/// With --recompute, and the micro-batch of the file. @throws InputError with every fault of the first file that has
/// one, or naming the option.
Inputs load(const InputOptions& options, const GoalOptions& goal, const std::vector<std::string>& left_out = {});
/// With the plan's micro-batch, what it recomputes, without what it leaves out. @throws InputError likewise, or naming
/// the plan's file.
Inputs load(const InputOptions& options, const Plan& plan, const std::string& plan_file);

/// Says on stderr which devices have no rate for the workload's dtype, so that their float32 rate counts.
void note_missing_rates(const Inputs& inputs);

/// The workload with another micro-batch. @throws InputError naming `where`, who asks for it, where it cannot be had:
/// for listed layers, and for times that were measured.
Workload at_micro_batch(const Inputs& inputs, std::uint64_t micro_batch, const std::string& where);
/// The workload that a plan made for these inputs is of: with the plan's micro-batch.
Workload workload_of(const Inputs& inputs, const Plan& plan);
/// Gives the workload the recomputation of `layers` (ascending). @throws InputError naming `where`, who asks for it.
void recompute(Workload& workload, const std::vector<std::size_t>& layers, const std::string& where);
/// Makes layers recompute their activations: "none", "all", or a list such as "3-10,12". @throws InputError naming
/// `option`.
void recompute_layers(Workload& workload, const std::string& option, const std::string& layers);

/// The file that a command writes when its work is done, opened before it begins: work that cannot be written is not
/// done. Until then what was there before stays; "" is no file, "-" is standard output.
class OutputFile {
 public:
  explicit OutputFile(const std::string& name);
  void write(const std::string& content);
  /// Whether the content goes to standard output, where the command then prints nothing else.
  bool is_standard_output() const { return is_standard_output_; }

 private:
  std::optional<TemporaryFile> file_;
  bool is_standard_output_;
};

/// The program of an allocator exec:PROGRAM; "" for others.
std::string program_of(const std::string& allocator);

/// What a platform is known by, and the files that it was read from.
struct PlatformFiles {
  std::string hash;
  std::vector<std::string> files;
};
/// Work for a child, since a process holds one platform: loads it, and says its PlatformFiles.
std::string platform_files_json(const std::string& file, const std::string& devices_file);
PlatformFiles platform_files_from(const std::string& json);

/// Reads an option's "30s". @throws InputError naming the option.
Seconds seconds_from_option(const std::string& option, const std::string& text);

/// Plans by an allocator, and says in the plan what it was made for.
Plan make_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
               const allocators::SearchLimits& limits);
/// Says in a plan what it was made for: the inputs, and the micro-batch where it is not that of the inputs.
void name_inputs(Plan& plan, const Inputs& inputs, std::uint64_t micro_batch);

/// Plays a plan in this process and returns its result (a Result of results/result.hpp) as JSON. `trace_file`: where
/// the Chrome trace goes, or "". Once per process.
std::string simulate_plan(const Inputs& inputs, const Plan& plan, std::uint64_t iterations,
                          const std::string& trace_file);

/// What the executor is shown of a simulation, whose result is given as JSON.
Stamp stamp_of(const std::string& result_json, const Plan& plan, const Inputs& inputs);

/// Why a plan has no stages, on one line; cut where it is long.
std::string reason_of(const Plan& plan);

/// Prints to stdout and makes a closed pipe or full disk an EnvironmentError.
void print(const std::string& text);

}  // namespace isobar::cli

#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/durable_files.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/launch/launch.hpp"
#include "exec/run/outer_rank.hpp"
#include "exec/run_command_options.hpp"
#include "exec/run_inputs.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// A run whose inputs are read and checked against each other, and its folder of checkpoints locked. Its `options.run`
/// is complete, but for `settings`, `stop` and `turns`.
class PreparedRun {
 public:
  /// Prints the reason if the plan has no placement.
  /// @throws InputError naming the file or option; EnvironmentError.
  PreparedRun(RunCommandOptions given, const std::optional<LaunchPlace>& launched);
  PreparedRun(const PreparedRun&) = delete;
  PreparedRun& operator=(const PreparedRun&) = delete;

  bool has_placement() const { return !plan.stages.empty(); }
  /// Whether all steps are done and nothing is to be evaluated.
  bool is_done() const;
  double samples_per_step() const;
  /// Options of the log of its steps.
  StepLogOptions log_options() const;

  RunCommandOptions options;
  std::optional<OuterRun> outer;  ///< of a plan of rounds
  Plan plan;                      ///< of such a plan that of the worker
  std::string workload_hash;
  Workload workload;
  std::unique_ptr<Program> program;
  std::optional<RunData> data;

 private:
  void complete(const std::optional<LaunchPlace>& launched, const std::vector<std::string>& output_files);

  void join_rounds();

  std::unique_ptr<BatchSource> synthetic_;
  std::unique_ptr<BatchSource> batches_;  // of its worker
  std::optional<Weights> weights_;
  std::unique_ptr<FolderLock> lock_;
  std::optional<Checkpoint> checkpoint_;
};

/// Sets what the runs of one process share: the device, the transport, and where lines for the user go.
/// @throws InputError naming the option.
void set_process_options(RunCommandOptions& options, const std::optional<LaunchPlace>& launched);

}  // namespace isobar::exec

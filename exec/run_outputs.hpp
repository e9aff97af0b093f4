#pragma once

#include "core/base/files.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/rank/rank_report.hpp"
#include "exec/run_command_options.hpp"

#include <optional>

namespace isobar::exec {

/// Files that a run writes at its end. Rank 0 writes them for all ranks. They are opened before training, so that a run
/// does not train if its results cannot be written.
struct RunOutputs {
  /// @throws EnvironmentError when a file cannot be written.
  explicit RunOutputs(const RunCommandOptions& options);

  std::optional<TemporaryFile> trace;
  std::optional<TemporaryFile> result;
};

/// Whether this process has the rank that logs steps: that of the last stage, which has the loss.
bool logs_steps(const RunCommandOptions& options, const Plan& plan);

/// Prints and writes the measurements of all ranks. `samples`: per step. @throws EnvironmentError when a write fails.
void report_run(const Plan& plan, const Program& program, const MeasuredRun& measured, double samples,
                const RunCommandOptions& options, RunOutputs& outputs);

}  // namespace isobar::exec

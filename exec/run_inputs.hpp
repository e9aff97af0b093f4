#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "exec/data/dataset.hpp"
#include "exec/model/batch.hpp"
#include "exec/run_command_options.hpp"

#include <cstdint>
#include <memory>
#include <string>

/// The inputs of `isobar-exec run`: the workload as the plan requires it, and data.
namespace isobar::exec {

/// Reads the workload with the plan's settings, and applies --profile, whose speed it stores in `options.run`.
/// @throws InputError naming the file or option, also when the plan was made with another profile or setting, and for a
/// workload that lists differences from its model.
Workload read_run_workload(const Plan& plan, const std::string& workload_text, RunCommandOptions& options);

/// The workload with the plan's micro-batch size and recomputation.
/// @throws InputError naming `plan_file` when the workload cannot have them.
Workload as_planned(Workload workload, const Plan& plan, const std::string& plan_file);

/// Refuses a plan that does not fit the workload or, without --unvalidated, that was not simulated as it is.
/// @throws InputError with every fault.
void check_plan(const Plan& plan, const Workload& workload, const std::string& workload_hash,
                const RunCommandOptions& options);

/// The data files of a run, as sources of micro-batches. `workload` must outlive it.
struct RunData {
  /// @throws InputError as open_datasets does.
  RunData(const RunCommandOptions& options, const Workload& workload, std::uint64_t microbatches);

  Datasets datasets;
  std::unique_ptr<BatchSource> batches;     ///< null without --data
  std::unique_ptr<BatchSource> evaluation;  ///< null without --evaluate
  std::uint64_t evaluation_steps = 0;
};

}  // namespace isobar::exec

#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/rank/rank_executor.hpp"
#include "exec/rank/rank_report.hpp"
#include "exec/run/run.hpp"
#include "exec/watch/lateness.hpp"
#include "exec/watch/progress.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

/// One rank of a run, from its parameters to its report, over any transport.
namespace isobar::exec {

/// What all ranks of a run share. The references must outlive it.
struct RunContext {
  RunContext(const Workload& run_workload, const Plan& run_plan, const Program& run_program,
             const RunOptions& run_options, std::string id);

  const Workload& workload;
  const Plan& plan;
  const Program& program;
  const RunOptions& options;
  std::string run_id;  ///< shared by ranks that are processes; "" for threads
  std::unique_ptr<BatchSource> synthetic;
  std::unique_ptr<Program> evaluation;  ///< null without data to evaluate on
  std::unique_ptr<Lateness> lateness;   ///< updated by rank 0
};

/// Makes a rank's executor with its stages, at the step that the run begins with. `progress` may be null.
std::unique_ptr<RankExecutor> make_executor(const RunContext& context, std::size_t rank, Progress* progress = nullptr);

/// Receives the first failure of a rank's lanes at once, even while another lane is busy.
using Failed = std::function<void(const std::exception_ptr& failure)>;

/// Executes one rank to its end: training, evaluation and checkpoints. `executor` must be connected; `progress` may be
/// null.
RankReport play_rank(const RunContext& context, std::size_t rank, RankExecutor& executor, const StepEnded& step_ended,
                     Progress* progress = nullptr, const Failed& failed = {});

/// Steps done since step 0 by a rank that has ended.
std::uint64_t steps_done(const RunOptions& options, const RankExecutor& executor);
/// Whether a rank that has ended was stopped before the end of its evaluation.
bool evaluation_is_cut(const RunOptions& options, const RankExecutor& executor);

}  // namespace isobar::exec

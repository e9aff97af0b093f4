#include "exec/run_outputs.hpp"

#include "exec/launch/plan_ranks.hpp"
#include "exec/run/run_result.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace isobar::exec {

RunOutputs::RunOutputs(const RunCommandOptions& options)
{
  if (options.rank.value_or(0) != 0) return;
  if (!options.trace.empty()) trace.emplace(options.trace);
  if (!options.output.empty()) result.emplace(options.output);
}

bool logs_steps(const RunCommandOptions& options, const Plan& plan)
{
  return !options.rank || *options.rank == rank_of_loss(plan);
}

void report_run(const Plan& plan, const Program& program, const MeasuredRun& measured, double samples,
                const RunCommandOptions& options, RunOutputs& outputs)
{
  // In the order of their value to the user, in case the disk is full.
  const RunResult result = result_of(plan, measured, samples);
  fmt::print("{}", options.json ? result.json : result.summary);
  std::fflush(stdout);
  if (!result.note.empty()) options.run.warn(result.note);
  if (outputs.result) {
    outputs.result->write(result.json);
    outputs.result->keep();
  }
  if (outputs.trace) {
    outputs.trace->write(trace_of(plan, program, measured));
    outputs.trace->keep();
  }
}

}  // namespace isobar::exec

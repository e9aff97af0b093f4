#pragma once

#include "core/plan/tied_copies.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/run/run.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/run/exchange_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/unit_devices.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <optional>
#include <vector>

/// What training by a plan gives, and what a plain loop does.
namespace isobar::exec {

struct Trained {
  std::vector<double> losses;
  std::optional<EvaluationSums> evaluation;
};

inline Trained trained(
    const Workload& workload, const Plan& plan, Way way, const RunOptions& options,
    const StepEnded& step_ended = [](const StepReport&) {})
{
  const Workload planned = with_tied_copies(workload, plan);
  const auto program = testing_support::unit_program(plan, planned);
  const auto measured = run_by(way, planned, plan, *program, options, step_ended);
  return {measured.losses(), measured.evaluation()};
}

inline std::vector<double> losses_of_a_plain_loop(const Workload& workload, std::uint64_t steps,
                                                  std::uint64_t microbatches)
{
  at::set_num_threads(1);
  PlainLoop loop(workload, seed, microbatches);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < steps; ++step) losses.push_back(loop.step());
  return losses;
}

/// The losses of the second half of the steps, by a plan that resumes a checkpoint that another has written after the
/// first half, over TCP.
inline std::vector<double> losses_after_resuming(const Workload& workload, const Plan& before, const Plan& after,
                                                 std::uint64_t steps)
{
  const testing_support::TemporaryFolder folder;
  RunOptions options = options_for(steps / 2);
  options.checkpoints.folder = folder.path() / "checkpoints";
  trained(with_divisions(workload, before), before, Way::Tcp, options);
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(steps / 2);
  options.steps = steps;
  options.first_step = checkpoint.step();
  options.resume_from = &checkpoint;
  options.checkpoints.folder.clear();
  return trained(with_divisions(workload, after), after, Way::Tcp, options).losses;
}

}  // namespace isobar::exec

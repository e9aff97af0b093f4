#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "exec/commands.hpp"
#include "exec/device/device.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/step_log.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/mix_command.hpp"
#include "exec/prepared_run.hpp"
#include "exec/run/machine_needs.hpp"
#include "exec/run/run.hpp"
#include "exec/run_command_options.hpp"
#include "exec/run_machines.hpp"
#include "exec/run_outputs.hpp"
#include "exec/run_ranks.hpp"
#include "exec/watch/restart.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(Example:
  isobar simulate platform.xml workloads/bert10.yaml --plan plan.json --stamp
  isobar run workloads/bert10.yaml --plan plan.json --spawn --steps 20 \
    --trace measured.json
)";

ExitCode run_prepared(PreparedRun& prepared, const std::optional<LaunchPlace>& launched)
{
  RunCommandOptions& options = prepared.options;
  const Plan& plan = prepared.plan;
  const Workload& workload = prepared.workload;
  const auto& program = prepared.program;
  if (prepared.is_done()) {
    say(fmt::format("--steps {}: all of them are done", options.run.steps));
    return ExitCode::Done;
  }
  options.run.settings = settings_of(options);
  std::optional<RankPlace> place;
  if (launched && launched->world_size != program->ranks()) {
    throw InputError(fmt::format("{} ranks are here; the plan has {}: {}", launched->world_size, program->ranks(),
                                 fmt::join(devices_of_ranks(plan), ", ")));
  }
  if (launched) place = meet_others(*launched, options, plan, workload, prepared.workload_hash);
  if (!options.ranks.empty()) place = listed_place(options, *program);
  if (place) options.rank = place->rank;
  // Ranks that a launcher starts have compared their memory with the plan when they met.
  if (!launched && !is_gpu(options.run.device)) {
    require_memory("the plan needs", peak_memory_here(plan, options.rank));
  }
  require_machine(*program, options);

  std::optional<StepLog> log;
  if (logs_steps(options, plan)) log.emplace(prepared.log_options());
  RunOutputs outputs(options);
  const GracefulStop stop;
  options.run.stop = &stop;
  const StepEnded step_ended = [&log](const StepReport& step) { log.value()(step); };
  const auto outcome = [&]() -> RankOutcome {
    if (place) return run_rank(workload, plan, *program, std::move(*place), options.run, step_ended);
    auto measured =
        (options.spawn ? run_in_processes : run_in_process)(workload, plan, *program, options.run, step_ended);
    const bool evaluation_is_cut = prepared.data->evaluation && !measured.evaluation();
    return {measured.first_step() + measured.steps(), evaluation_is_cut, std::move(measured)};
  }();

  const auto& checkpoints = options.run.checkpoints;
  // Only now, since all ranks have written their part of the last one.
  if (outcome.measured && !checkpoints.folder.empty()) CheckpointStore(checkpoints.folder).keep_last(checkpoints.keep);
  if (outcome.measured) report_run(plan, *program, *outcome.measured, prepared.samples_per_step(), options, outputs);
  if (outcome.steps_done >= options.run.steps && !outcome.evaluation_is_cut) return ExitCode::Done;
  say(fmt::format("interrupted; {} of {} steps are done", outcome.steps_done, options.run.steps));
  return ExitCode::Interrupted;
}

/// One attempt of a run.
ExitCode run(RunCommandOptions options)
{
  check_run_options(options);
  const auto launched = launched_place(options);
  set_process_options(options, launched);
  PreparedRun prepared(std::move(options), launched);
  return prepared.has_placement() ? run_prepared(prepared, launched) : ExitCode::Infeasible;
}

}  // namespace

void add_run_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("run", "train a model as a plan prescribes, on real devices");
  auto options = std::make_shared<RunCommandOptions>();
  add_run_options(*command, *options);
  command->footer(footer);
  command->callback([options, &action] {
    action = [options] {
      check_run_inputs(*options);
      if (!options->mix.empty()) return run_mix_of_jobs(*options);
      return run_restarted(
          options->restart,
          {options->workload, options->plan, options->run.checkpoints.folder, options->resume, inputs_of(*options)},
          [&options](const std::string& plan, bool resume) {
            RunCommandOptions attempt = *options;
            attempt.plan = plan;
            attempt.resume = resume;
            return run(attempt);
          });
    };
  });
}

}  // namespace isobar::exec

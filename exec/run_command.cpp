#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/check/residence_checker.hpp"
#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"
#include "core/program/walk.hpp"
#include "exec/commands.hpp"
#include "exec/device/device.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/step_log.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/launch/restart.hpp"
#include "exec/run/run.hpp"
#include "exec/run/run_result.hpp"
#include "exec/run_command_options.hpp"
#include "exec/run_inputs.hpp"
#include "exec/run_machines.hpp"
#include "exec/run_outputs.hpp"
#include "exec/run_ranks.hpp"
#include "exec/run_resume.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Refuses a plan by whose program instructions wait for each other in a circle.
void require_end(const Plan& plan, const Program& program, const std::string& plan_file)
{
  const auto key = key_of_circle(plan);
  if (!key) return;
  if (const auto deadlock = deadlock_of(program)) throw InputError(plan_file, fmt::format("{}: {}", *key, *deadlock));
}

/// One attempt of a run.
ExitCode run(RunCommandOptions options)
{
  check_run_options(options);
  const auto launched = launched_place(options);
  if (launched && options.device == "cuda:local") options.device = fmt::format("cuda:{}", launched->local_rank);
  options.run.device = device_from_text(options.device);
  set_transport(options);
  options.run.info = [quiet = options.json](const std::string& line) {
    if (!quiet) fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  options.run.warn = say_here();
  const Plan plan = schedules::read_scheduled_plan(options.plan);
  const std::string workload_text = read_file(options.workload);
  const std::string workload_hash = workload_fingerprint(workload_text, plan.workload.set);
  const Workload workload = as_planned(read_run_workload(plan, workload_text, options), plan, options.plan);
  if (plan.stages.empty()) {
    fmt::print("{}: there is no placement to run ({}): {}\n", options.plan, name_of(plan.outcome), shown(plan.reason));
    return ExitCode::Infeasible;
  }
  check_plan(plan, workload, workload_hash, options);
  const std::vector<std::string> output_files = {options.output, options.trace, options.log.json_lines,
                                                 options.log.prometheus};
  refuse_overwriting(inputs_of(options), output_files);

  for (const auto& stage : plan.stages) {
    if (stage.residence.optimizer == Tier::Device || stage.residence.overlap != UpdateOverlap::Delayed) continue;
    options.run.warn("the plan's overlap is delayed: updates are a step late, so losses are not those of other plans");
    break;
  }
  if (options.run.emulate || !options.platform.empty()) set_machine_rates(plan, options);
  const auto program = schedules::make_program(plan, workload);
  require_end(plan, *program, options.plan);
  options.run.limits = time_limits_of(plan, options);
  const RunData data(options, workload, plan.goal.microbatches);
  options.run.batches = data.batches.get();
  options.run.evaluation = data.evaluation.get();
  options.run.evaluation_steps = data.evaluation_steps;
  set_checkpoint_interval(options);
  std::optional<Weights> weights;
  if (!options.weights.empty()) {
    options.run.weights = &weights.emplace(options.weights);
    refuse_overwriting(weights->files(), output_files);
  }
  options.run.checkpoints.run = run_identity(options, plan, workload_hash, weights);
  const auto lock = lock_checkpoints(options, launched);
  const auto checkpoint = checkpoint_to_resume(options, workload.layers.size());
  if (checkpoint) options.run.resume_from = &*checkpoint;
  if (options.run.first_step >= options.run.steps && !data.evaluation) {
    say(fmt::format("--steps {}: all of them are done", options.run.steps));
    return ExitCode::Done;
  }

  options.run.settings = settings_of(options);
  std::optional<RankPlace> place;
  if (launched && launched->world_size != program->ranks()) {
    throw InputError(fmt::format("{} ranks are here; the plan has {}: {}", launched->world_size, program->ranks(),
                                 fmt::join(devices_of_ranks(plan), ", ")));
  }
  if (launched) place = meet_others(*launched, options, plan, workload, workload_hash);
  if (!options.ranks.empty()) place = listed_place(options, *program);
  if (place) options.rank = place->rank;
  require_machine(*program, options);

  const double samples = static_cast<double>(workload.micro_batch * plan.goal.microbatches);
  options.log.samples = samples;
  options.log.updates_late = updates_late(plan);
  options.log.table = !options.json;
  options.log.append = options.resume;
  options.log.first_step = options.run.first_step;
  std::optional<StepLog> log;
  if (logs_steps(options, plan)) log.emplace(options.log);
  RunOutputs outputs(options);
  const GracefulStop stop;
  options.run.stop = &stop;
  const StepEnded step_ended = [&log](const StepReport& step) { log.value()(step); };
  const auto outcome = [&]() -> RankOutcome {
    if (place) return run_rank(workload, plan, *program, std::move(*place), options.run, step_ended);
    auto measured =
        (options.spawn ? run_in_processes : run_in_process)(workload, plan, *program, options.run, step_ended);
    const bool evaluation_is_cut = data.evaluation && !measured.evaluation();
    return {measured.first_step() + measured.steps(), evaluation_is_cut, std::move(measured)};
  }();

  const auto& checkpoints = options.run.checkpoints;
  // Only now, since all ranks have written their part of the last one.
  if (outcome.measured && !checkpoints.folder.empty()) CheckpointStore(checkpoints.folder).keep_last(checkpoints.keep);
  if (outcome.measured) report_run(plan, *program, *outcome.measured, samples, options, outputs);
  if (outcome.steps_done >= options.run.steps && !outcome.evaluation_is_cut) return ExitCode::Done;
  say(fmt::format("interrupted; {} of {} steps are done", outcome.steps_done, options.run.steps));
  return ExitCode::Interrupted;
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

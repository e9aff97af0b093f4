#include "exec/prepared_run.hpp"

#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/check/residence_checker.hpp"
#include "core/model/differences.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/walk.hpp"
#include "exec/device/device.hpp"
#include "exec/run/run_devices.hpp"
#include "exec/run/run_result.hpp"
#include "exec/run_machines.hpp"
#include "exec/run_resume.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace isobar::exec {

namespace {

/// Refuses a plan by whose program instructions wait for each other in a circle.
void require_end(const Plan& plan, const Program& program, const std::string& plan_file)
{
  const auto key = key_of_circle(plan);
  if (!key) return;
  if (const auto deadlock = deadlock_of(program)) throw InputError(plan_file, fmt::format("{}: {}", *key, *deadlock));
}

}  // namespace

void set_process_options(RunCommandOptions& options, const std::optional<LaunchPlace>& launched)
{
  if (launched && options.device == "cuda:local") options.device = fmt::format("cuda:{}", launched->local_rank);
  options.run.device = device_from_text(options.device);
  set_transport(options);
  options.run.info = [quiet = options.json](const std::string& line) {
    if (!quiet) fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  options.run.warn = say_here();
}

PreparedRun::PreparedRun(RunCommandOptions given, const std::optional<LaunchPlace>& launched)
    : options(std::move(given)), plan(schedules::read_scheduled_plan(options.plan))
{
  const std::string workload_text = read_file(options.workload);
  workload_hash = workload_fingerprint(workload_text, plan.workload.set);
  workload = as_planned(read_run_workload(plan, workload_text, options), plan, options.plan);
  if (!has_placement()) {
    fmt::print("{}: there is no placement to run ({}): {}\n", options.plan, name_of(plan.outcome), shown(plan.reason));
    return;
  }
  check_plan(plan, workload, workload_hash, options);
  const std::vector<std::string> output_files = {options.output, options.trace, options.log.json_lines,
                                                 options.log.prometheus};
  refuse_overwriting(inputs_of(options), output_files);
  complete(launched, output_files);
}

void PreparedRun::complete(const std::optional<LaunchPlace>& launched, const std::vector<std::string>& output_files)
{
  if (const auto note = note_of_head(workload, options.workload)) options.run.warn(*note);
  for (const auto& stage : plan.stages) {
    if (stage.residence.optimizer == Tier::Device || stage.residence.overlap != UpdateOverlap::Delayed) continue;
    options.run.warn("the plan's overlap is delayed: updates are a step late, so losses are not those of other plans");
    break;
  }
  if (options.run.emulate || !options.platform.empty()) set_machine_rates(plan, options);
  program = schedules::make_program(plan, workload, run_devices(plan, options.run));
  require_end(plan, *program, options.plan);
  options.run.limits = time_limits_of(plan.predicted ? plan.predicted->step_time : Seconds(0), options);
  data.emplace(options, workload, whole_microbatches(plan));
  options.run.batches = data->batches.get();
  options.run.evaluation = data->evaluation.get();
  options.run.evaluation_steps = data->evaluation_steps;
  set_checkpoint_interval(options);
  if (!options.weights.empty()) {
    options.run.weights = &weights_.emplace(options.weights);
    refuse_overwriting(weights_->files(), output_files);
  }
  options.run.checkpoints.run = run_identity(options, plan, workload_hash, weights_);
  lock_ = lock_checkpoints(options, launched);
  checkpoint_ = checkpoint_to_resume(options, workload.layers.size());
  if (checkpoint_) options.run.resume_from = &*checkpoint_;
}

bool PreparedRun::is_done() const
{
  return options.run.first_step >= options.run.steps && !data->evaluation;
}

double PreparedRun::samples_per_step() const
{
  return static_cast<double>(workload.micro_batch * whole_microbatches(plan));
}

StepLogOptions PreparedRun::log_options() const
{
  StepLogOptions log = options.log;
  log.samples = samples_per_step();
  log.updates_late = updates_late(plan);
  log.table = !options.json;
  log.append = options.resume;
  log.first_step = options.run.first_step;
  return log;
}

}  // namespace isobar::exec

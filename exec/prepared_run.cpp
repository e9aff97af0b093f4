#include "exec/prepared_run.hpp"

#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/check/residence_checker.hpp"
#include "core/model/differences.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/walk.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/device/device.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/net/address.hpp"
#include "exec/run/run_devices.hpp"
#include "exec/run/run_result.hpp"
#include "exec/run_machines.hpp"
#include "exec/run_resume.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

std::uint64_t microbatches_of_workers(const OuterPlan& plan)
{
  std::uint64_t microbatches = 0;
  for (const auto& worker : plan.workers) microbatches += whole_microbatches(worker.plan);
  return microbatches;
}

/// The plan of the worker of a plan of rounds, whose part of them `outer` then says; or the plan that the file is.
Plan read_plan_to_run(RunCommandOptions& options, std::optional<OuterRun>& outer)
{
  if (!is_outer_plan(options.plan)) {
    const std::pair<const char*, bool> of_rounds[] = {{"--worker", !options.worker.empty()},
                                                      {"--workers", !options.workers.empty()},
                                                      {"--rounds", options.rounds.has_value()}};
    for (const auto& [option, is_given] : of_rounds) {
      if (is_given) throw InputError(option, "is for plans of rounds (isobar plan --outer); leave it out");
    }
    return schedules::read_scheduled_plan(options.plan);
  }
  outer.emplace();
  outer->plan = read_outer_plan(options.plan);
  const auto& workers = outer->plan.workers;
  std::vector<std::string> names;
  for (const auto& worker : workers) names.push_back(worker.name);
  const auto found = std::ranges::find(names, options.worker);
  if (found == names.end()) {
    throw InputError("--worker",
                     fmt::format("{}; write one of {}",
                                 options.worker.empty() ? std::string("missing")
                                                        : in_quotes(options.worker) + " is no worker of the plan",
                                 fmt::join(names, ", ")));
  }
  outer->worker = static_cast<std::size_t>(found - names.begin());
  if (options.workers.size() != workers.size()) {
    throw InputError("--workers",
                     fmt::format("lists {}; the plan has {}", counted(options.workers.size(), "address", "es"),
                                 counted(workers.size(), "worker")));
  }
  for (const auto& address : options.workers) outer->addresses.push_back(endpoint_from_text("--workers", address));
  if (outer->plan.outer.algorithm != Algorithm::Direct) {
    throw InputError(options.plan, fmt::format("outer.algorithm: {}; isobar run exchanges directly, so plan with "
                                               "--outer-sync direct",
                                               name_of(outer->plan.outer.algorithm)));
  }
  if (!options.spawn && !options.in_process) {
    throw InputError("--worker", "has all of its ranks on this machine in this version; add --spawn or --in-process");
  }
  const std::pair<const char*, bool> others[] = {{"--checkpoint", !options.run.checkpoints.folder.empty()},
                                                 {"--evaluate", !options.data.evaluation.empty()},
                                                 {"--replan", !options.restart.replan.empty()}};
  for (const auto& [option, is_given] : others) {
    if (is_given) throw InputError(option, "is not for plans of rounds in this version; leave it out");
  }
  const std::uint64_t rounds = options.rounds.value_or(1);
  constexpr std::uint64_t most_rounds = 1'000'000;
  if (rounds < 1 || rounds > most_rounds) {
    throw InputError("--rounds", fmt::format("{} is not in 1 to {}", rounds, most_rounds));
  }
  options.run.steps = rounds * workers[outer->worker].steps;
  options.unvalidated = true;  // a plan of rounds has no stamps
  return workers[outer->worker].plan;
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
    : options(std::move(given)), plan(read_plan_to_run(options, outer))
{
  const std::string workload_text = read_file(options.workload);
  workload_hash = workload_fingerprint(workload_text, plan.workload.set);
  workload = as_planned(read_run_workload(plan, workload_text, options), plan, options.plan);
  if (!has_placement()) {
    fmt::print("{}: there is no placement to run ({}): {}\n", options.plan, name_of(plan.outcome), shown(plan.reason));
    return;
  }
  check_plan(plan, workload, workload_hash, options);
  if (outer) {
    for (std::size_t k = 0; k < outer->plan.workers.size(); ++k) {
      const Plan& own = outer->plan.workers[k].plan;
      const auto why =
          why_not_run_in_rounds(own, as_planned(read_run_workload(own, workload_text, options), own, options.plan));
      if (!why.empty()) throw InputError(options.plan, fmt::format("workers[{}].plan: {}", k, why));
    }
    const std::size_t pieces = shared_layers(outer->plan.workers, workload.layers.size()).size();
    constexpr std::size_t last_port = 65'535;
    for (std::size_t k = 0; k < outer->addresses.size(); ++k) {
      if (outer->addresses[k].port + pieces - 1 <= last_port) continue;
      throw InputError("--workers",
                       fmt::format("{} leaves no room for the {} ports from there on that a worker listens "
                                   "on; take a lower one",
                                   in_quotes(options.workers[k]), pieces));
    }
  }
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
  data.emplace(options, workload, outer ? microbatches_of_workers(outer->plan) : whole_microbatches(plan));
  options.run.batches = data->batches.get();
  options.run.evaluation = data->evaluation.get();
  options.run.evaluation_steps = data->evaluation_steps;
  if (outer) join_rounds();
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

/// Takes the worker's part of the samples of each step, and lets the run meet the other workers.
void PreparedRun::join_rounds()
{
  std::uint64_t first = 0;  // micro-batch of a step
  for (std::size_t k = 0; k < outer->worker; ++k) first += whole_microbatches(outer->plan.workers[k].plan);
  if (!data->batches) synthetic_ = synthetic_batches(workload);
  batches_ = batches_from(data->batches ? *data->batches : *synthetic_, first);
  options.run.batches = batches_.get();
  outer->micro_batch = workload.micro_batch;
  outer->network = options.run.network;
  outer->secret = secret_of(options.run.network);  // changes the environment, so before torch starts threads
  options.run.network = {};                        // the worker's own ranks have a secret of their own
  outer->connections = options.run.connections;
  outer->threads = options.run.threads;
  outer->connect = options.run.limits.connect;
  // A worker may be slower than planned, and sends nothing before its snapshot.
  constexpr Seconds at_least(600);
  const TimeLimits& limits = options.run.limits;
  outer->patience = limits.transfer_is_set ? limits.transfer : at_least + 10 * outer->plan.predicted.round_time;
  outer->info = options.run.info;
  options.run.outer = &*outer;
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

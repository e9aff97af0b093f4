#include "exec/mix_command.hpp"

#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/jobs/mix.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/device/device.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/step_log.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/links/network_options.hpp"
#include "exec/prepared_run.hpp"
#include "exec/run/machine_needs.hpp"
#include "exec/run/mix_run.hpp"
#include "exec/run/run_result.hpp"
#include "exec/run_machines.hpp"
#include "exec/run_outputs.hpp"
#include "schedules/lowering/plan_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;

/// Refuses options of one job.
void check_mix_options(const RunCommandOptions& options)
{
  const auto refuse = [](bool is_given, const char* option, const char* why) {
    if (is_given) throw InputError(option, why);
  };
  constexpr auto named = "a mix names the workloads and plans of its jobs; leave it out";
  constexpr auto one_data = "is for one workload, and the jobs of a mix train on synthetic data; leave it out";
  refuse(!options.workload.empty(), "WORKLOAD", named);
  refuse(!options.plan.empty(), "--plan", named);
  refuse(!options.settings.empty(), "--set", "the plans of a mix have the settings of their workloads; leave it out");
  refuse(!options.data.train.empty(), "--data", one_data);
  refuse(!options.data.type.empty(), "--data-type", one_data);
  refuse(!options.data.evaluation.empty(), "--evaluate", one_data);
  refuse(!options.data.vocabulary.empty(), "--vocabulary", one_data);
  refuse(!options.weights.empty(), "--weights", "is for one model; leave it out");
  refuse(options.restart.restarts > 0, "--restart",
         "starts one job again; run the mix again with --resume, which continues each job");
  refuse(!options.restart.replan.empty(), "--replan", "plans one job again; leave it out");
  refuse(options.launch.any(), "--world",
         "and other options of a launcher are for one job; give --ranks the addresses of the mix's devices");
  if (!options.spawn && !options.in_process && options.ranks.empty()) {
    throw InputError(
        "choose where the jobs run: --spawn (processes on this machine), --in-process (threads), or "
        "--rank N with --ranks HOST:PORT,… (the ranks on the mix's device N here, the others elsewhere)");
  }
  if (options.processes && !options.spawn) throw InputError("--processes", "is for --spawn; add it, or leave this out");
}

MixProcesses processes_of(const RunCommandOptions& options)
{
  if (options.in_process) return MixProcesses::None;
  if (!options.processes || options.processes == "device") return MixProcesses::Device;
  if (options.processes == "job") return MixProcesses::Job;
  throw InputError("--processes", in_quotes(*options.processes) + " is neither device nor job");
}

/// The file of one job, of an option that names one for all: "log.jsonl" is "log.a.jsonl".
std::string file_of_job(const std::string& file, const std::string& job)
{
  if (file.empty()) return file;
  const std::filesystem::path path(file);
  return path.parent_path() / (path.stem().string() + "." + job + path.extension().string());
}

std::string folder_of_job(const std::string& folder, const std::string& job)
{
  return folder.empty() ? folder : (std::filesystem::path(folder) / job).string();
}

/// The devices of a mix, and the number of each job's rank on one of them.
struct MixRanks {
  std::vector<std::string> devices;
  std::vector<std::optional<std::size_t>> on_device;  // by job

  MixRanks(const Mix& mix, std::size_t device)
  {
    std::vector<Plan> plans;
    std::vector<MixedRun> jobs(mix.jobs.size());
    for (const auto& job : mix.jobs) plans.push_back(schedules::read_scheduled_plan(job.plan));
    for (std::size_t job = 0; job < plans.size(); ++job) jobs[job].plan = &plans[job];
    devices = devices_of_mix(jobs);
    for (const auto& plan : plans) {
      const auto of_ranks = devices_of_ranks(plan);
      auto& own = on_device.emplace_back();
      for (std::size_t rank = 0; rank < of_ranks.size() && device < devices.size(); ++rank) {
        if (of_ranks[rank] == devices[device]) own = rank;
      }
    }
  }
};

/// The place that --rank and --ranks give this process. @throws InputError naming the option.
MixPlace listed_place(const RunCommandOptions& options, const MixRanks& ranks)
{
  const std::size_t count = ranks.devices.size();
  if (*options.rank >= count) {
    throw InputError("--rank", fmt::format("{} is not below the mix's {}: {}", *options.rank, counted(count, "device"),
                                           fmt::join(ranks.devices, ", ")));
  }
  if (options.ranks.size() != count) {
    throw InputError("--ranks",
                     fmt::format("lists {}; the mix has {}: {}", counted(options.ranks.size(), "address", "es"),
                                 counted(count, "device"), fmt::join(ranks.devices, ", ")));
  }
  MixPlace place{*options.rank, {}, nullptr};
  const std::size_t jobs = ranks.on_device.size();
  for (const auto& text : options.ranks) {
    const Endpoint endpoint = endpoint_from_text("--ranks", text);
    for (const auto& other : place.endpoints) {
      const auto distance = static_cast<std::size_t>(std::abs(int{other.port} - int{endpoint.port}));
      if (other.host != endpoint.host || distance >= jobs) continue;
      throw InputError("--ranks", fmt::format("{} and {} are {} ports apart; each job listens at the next port, so "
                                              "leave {}",
                                              text_of(other), text_of(endpoint), distance, jobs));
    }
    place.endpoints.push_back(endpoint);
  }
  place.secret = secret_of(options.run.network);
  return place;
}

/// Of what the machines of a mix must agree on, besides the plans and workloads.
std::string fingerprint_of(Mix mix)
{
  for (auto& job : mix.jobs) job.plan = job.workload = "";
  return fingerprint(mix_to_json(mix));
}

/// The options of one job, as if it ran alone.
RunCommandOptions options_of_job(const RunCommandOptions& of_mix, const MixJob& job, std::size_t name_width)
{
  RunCommandOptions options = of_mix;
  options.workload = job.workload;
  options.plan = job.plan;
  if (job.steps) options.run.steps = *job.steps;
  options.run.checkpoints.folder = folder_of_job(of_mix.run.checkpoints.folder, job.name);
  options.trace = file_of_job(of_mix.trace, job.name);
  options.log.json_lines = file_of_job(of_mix.log.json_lines, job.name);
  options.log.prometheus = file_of_job(of_mix.log.prometheus, job.name);
  options.log.tensorboard = folder_of_job(of_mix.log.tensorboard, job.name);
  options.log.job = fmt::format("{:<{}}", job.name, name_width);
  return options;
}

/// The jobs of a mix that have steps to do, and the rotation without the others.
struct ReadyMix {
  Mix mix;
  std::vector<std::unique_ptr<PreparedRun>> runs;
};

/// Leaves out the jobs whose steps are all done.
ReadyMix without_done(Mix mix, std::vector<std::unique_ptr<PreparedRun>> runs)
{
  ReadyMix ready;
  ready.mix = mix;
  ready.mix.jobs.clear();
  ready.mix.turns.clear();
  std::vector<std::optional<std::size_t>> new_index;
  for (std::size_t job = 0; job < runs.size(); ++job) {
    if (runs[job]->is_done()) {
      say(fmt::format("job {}: all of its {} steps are done", mix.jobs[job].name, runs[job]->options.run.steps));
      new_index.emplace_back();
      continue;
    }
    new_index.emplace_back(ready.runs.size());
    ready.mix.jobs.push_back(std::move(mix.jobs[job]));
    ready.runs.push_back(std::move(runs[job]));
  }
  for (const auto& turn : mix.turns) {
    if (const auto job = new_index[turn.job]) ready.mix.turns.push_back({*job, turn.steps});
  }
  return ready;
}

/// schema isobar-mix-run/1 (docs/formats/run.md).
Json result_of_mix(const ReadyMix& ready, const std::vector<JobOutcome>& outcomes, Seconds round)
{
  Json jobs = Json::array();
  for (std::size_t job = 0; job < outcomes.size(); ++job) {
    const PreparedRun& run = *ready.runs[job];
    const auto& outcome = outcomes[job];
    const auto& stamp = run.plan.stamp;
    Json result;
    if (outcome.measured) result = Json::parse(result_of(run.plan, *outcome.measured, run.samples_per_step()).json);
    jobs.push_back({{"name", ready.mix.jobs[job].name},
                    {"steps_per_round", steps_per_round(ready.mix, job)},
                    {"solo_step_time_s", stamp ? Json(stamp->step_time.value) : Json(nullptr)},
                    {"failure", outcome.failure ? Json(outcome.failure->text) : Json(nullptr)},
                    {"result", std::move(result)}});
  }
  return {{"schema", "isobar-mix-run/1"},
          {"discipline", name_of(ready.mix.discipline)},
          {"hand_over", name_of(ready.mix.hand_over)},
          {"links", name_of(ready.mix.links)},
          {"serial_round_time_s", round > Seconds(0) ? Json(round.value) : Json(nullptr)},
          {"jobs", std::move(jobs)}};
}

std::string summary_of_mix(const Json& result)
{
  std::string text = fmt::format("\n{:<16}  {:>6}  {:>12}  {:>11}  {:>11}\n", "job", "steps", "step s, mixed",
                                 "step s, solo", "last loss");
  const auto ended = [](const Json& job) {
    return job["failure"].is_null() ? "other ranks have its result" : "failed";
  };
  const auto number = [](const Json& value) {
    return value.is_null() ? "–" : fmt::format("{:.4g}", value.get<double>());
  };
  for (const auto& job : result["jobs"]) {
    const std::string name = job["name"];
    if (job["result"].is_null()) {
      text += fmt::format("{:<16}  {}\n", name, ended(job));
      continue;
    }
    const auto& losses = job["result"]["losses"];
    text += fmt::format("{:<16}  {:>6}  {:>13}  {:>12}  {:>11}\n", name, losses.size(),
                        number(job["result"]["step_time_s"]), number(job["solo_step_time_s"]),
                        losses.empty() ? "–" : fmt::format("{:.6g}", losses.back().get<double>()));
  }
  return text;
}

/// "rank 1 (b): died of signal 9 (Killed)" after the job's name, which some texts begin with.
std::string line_of_job(const std::string& name, const Failure& failure)
{
  return fmt::format("job {}: {}", name, line_of(failure));
}

}  // namespace

ExitCode run_mix_of_jobs(const RunCommandOptions& given)
{
  check_mix_options(given);
  check_run_options(given);
  const MixProcesses processes = processes_of(given);
  const Mix mix = read_mix(given.mix);
  RunCommandOptions options = given;
  set_process_options(options, std::nullopt);
  std::size_t name_width = 3;
  for (const auto& job : mix.jobs) name_width = std::max(name_width, job.name.size());

  std::optional<MixRanks> ranks;
  std::optional<MixPlace> place;
  if (options.rank) place = listed_place(options, ranks.emplace(mix, *options.rank));

  std::vector<std::unique_ptr<PreparedRun>> runs;
  for (const auto& job : mix.jobs) {
    RunCommandOptions of_job = options_of_job(options, job, name_width);
    constexpr std::size_t elsewhere = std::numeric_limits<std::size_t>::max();
    if (ranks) of_job.rank = ranks->on_device[runs.size()].value_or(elsewhere);
    runs.push_back(std::make_unique<PreparedRun>(std::move(of_job), std::nullopt));
    if (!runs.back()->has_placement()) return ExitCode::Infeasible;
  }
  const ReadyMix ready = without_done(mix, std::move(runs));
  if (ready.runs.empty()) return ExitCode::Done;

  std::optional<TemporaryFile> result_file;
  const auto has_result = [](const auto& run) { return run->options.rank.value_or(0) == 0; };
  if (!options.output.empty() && std::any_of(ready.runs.begin(), ready.runs.end(), has_result)) {
    result_file.emplace(options.output);
  }
  std::vector<std::optional<TemporaryFile>> traces(ready.runs.size());
  std::vector<std::unique_ptr<StepLog>> logs;
  std::vector<MixedRun> jobs;
  const GracefulStop stop;
  Bytes needed;
  for (const auto& run : ready.runs) {
    if (!is_gpu(run->options.run.device)) needed += peak_memory_here(run->plan, run->options.rank);
  }
  require_memory("the jobs need", needed);
  for (const auto& run : ready.runs) {
    const RunCommandOptions& of_job = run->options;
    if (!of_job.rank || *of_job.rank < run->program->ranks()) require_machine(*run->program, of_job);
    if (!of_job.trace.empty() && of_job.rank.value_or(0) == 0) traces[jobs.size()].emplace(of_job.trace);
    auto& log = logs.emplace_back();
    if (logs_steps(of_job, run->plan)) log = std::make_unique<StepLog>(run->log_options());
    run->options.run.stop = &stop;
    run->options.run.settings = fmt::format("{}, in the mix {}", settings_of(of_job), fingerprint_of(mix));
    jobs.push_back({&run->workload, &run->plan, run->program.get(), of_job.run,
                    [log = log.get()](const StepReport& step) { (*log)(step); }});
  }
  const Seconds round = predicted_round(ready.mix, jobs);
  for (auto& job : jobs) job.options.limits = time_limits_of(round, options);
  require_executable(ready.mix, jobs, place.has_value());
  if (!options.json) {
    fmt::print("{:<{}}  {:>5}  {:>10}  {:>10}  {:>9}\n", "job", name_width, "step", "loss", "samples/s", "step s");
  }
  std::optional<ExitCode> code;
  const auto failed = [&](std::size_t job, const Failure& failure) {
    say(line_of_job(ready.mix.jobs[job].name, failure));
    if (!code) code = failure.code;
  };
  const auto outcomes = place ? run_mix_device(ready.mix, std::move(jobs), *place, failed)
                              : run_mix(ready.mix, std::move(jobs), processes, failed);

  const Json result = result_of_mix(ready, outcomes, round);
  fmt::print("{}", options.json ? result.dump(2) + "\n" : summary_of_mix(result));
  std::fflush(stdout);
  for (std::size_t job = 0; job < outcomes.size(); ++job) {
    const auto& outcome = outcomes[job];
    const PreparedRun& run = *ready.runs[job];
    const auto& checkpoints = run.options.run.checkpoints;
    if (outcome.measured && !checkpoints.folder.empty()) {
      CheckpointStore(checkpoints.folder).keep_last(checkpoints.keep);
    }
    if (outcome.measured && traces[job]) {
      traces[job]->write(trace_of(run.plan, *run.program, *outcome.measured));
      traces[job]->keep();
    }
    const bool is_here = outcome.measured || outcome.steps_done > 0;
    if (!is_here || outcome.failure || outcome.steps_done == run.options.run.steps) continue;
    say(fmt::format("job {}: interrupted; {} of {} steps are done", ready.mix.jobs[job].name, outcome.steps_done,
                    run.options.run.steps));
    if (!code) code = ExitCode::Interrupted;
  }
  if (result_file) {
    result_file->write(result.dump(2) + "\n");
    result_file->keep();
  }
  return code.value_or(ExitCode::Done);
}

}  // namespace isobar::exec

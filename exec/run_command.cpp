#include "core/check/plan_checker.hpp"
#include "exec/commands.hpp"

#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/quantity_text.hpp"
#include "core/base/standard_streams.hpp"
#include "core/model/device_profile.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "exec/data/dataset.hpp"
#include "exec/data_options.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/durable_files.hpp"
#include "exec/files/step_log.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/launch/launch_options.hpp"
#include "exec/launch/rendezvous.hpp"
#include "exec/launch/restart.hpp"
#include "exec/model/device.hpp"
#include "exec/net/address.hpp"
#include "exec/run/rank_facts.hpp"
#include "exec/run/run.hpp"
#include "exec/run/run_result.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(Example:
  isobar simulate platform.xml workloads/bert10.yaml --plan plan.json --stamp
  isobar run workloads/bert10.yaml --plan plan.json --spawn --steps 20 \
    --trace measured.json
)";

struct CommandOptions {
  std::string workload;
  std::string plan;
  bool spawn = false;
  bool in_process = false;
  std::optional<std::size_t> rank;
  std::vector<std::string> ranks;
  LaunchOptions launch;
  std::string profile;
  bool unvalidated = false;
  std::string device = "cpu";
  std::optional<std::string> transport;
  std::optional<std::string> deadline;
  std::optional<std::string> heartbeat;
  RestartOptions restart;
  std::string trace;
  StepLogOptions log;
  std::string output;
  bool json = false;
  DataOptions data;
  std::string weights;
  std::string checkpoint_every;
  bool resume = false;
  RunOptions run;
};

Seconds seconds_from(const char* option, const std::string& text)
{
  try {
    return seconds_from_text(text);
  } catch (const std::invalid_argument& fault) {
    throw InputError(option, fault.what());
  }
}

TimeLimits limits_of(const Plan& plan, const CommandOptions& options)
{
  const auto asked = [](const char* option, const std::optional<std::string>& text) {
    return text ? std::optional(seconds_from(option, *text)) : std::nullopt;
  };
  return time_limits(plan.predicted ? plan.predicted->step_time : Seconds(0), asked("--deadline", options.deadline),
                     asked("--heartbeat", options.heartbeat));
}

/// "100" is a number of steps, "5 min" a time.
void read_checkpoint_every(const std::string& text, CheckpointOptions& checkpoints)
{
  if (text.empty()) return;
  constexpr std::size_t longest_count = 9;
  if (text.find_first_not_of("0123456789") != std::string::npos || text.size() > longest_count) {
    checkpoints.every = seconds_from("--checkpoint-every", text);
  } else {
    checkpoints.every_steps = std::stoull(text);
  }
  if (checkpoints.every_steps == 0 && !(checkpoints.every > Seconds(0))) {
    throw InputError("--checkpoint-every",
                     in_quotes(text) + "; write a number of steps, such as 100, or a time, such as 10 min");
  }
}

constexpr auto ways_to_run =
    "say where the ranks run: --spawn (processes on this machine), --in-process (threads of this one), or --rank N "
    "with --ranks HOST:PORT,… (this one here, the others elsewhere); torchrun, srun and mpirun say it themselves";

void check_options(const CommandOptions& options)
{
  const bool is_one_rank = options.rank || !options.ranks.empty() || options.launch.any();
  const int ways =
      static_cast<int>(options.spawn) + static_cast<int>(options.in_process) + static_cast<int>(is_one_rank);
  if (ways > 1) throw InputError(ways_to_run);
  if (!options.ranks.empty() && !options.rank) throw InputError("--rank and --ranks go together");
  if (!options.ranks.empty() && options.launch.any()) {
    throw InputError("--ranks says all places; --world, --master, --plan-device, --map and --clock-skew go without it");
  }
  if (options.in_process) refuse_network_options(options.run.network);
  constexpr std::uint64_t most_steps = 1'000'000'000;
  if (options.run.steps < 1 || options.run.steps > most_steps) {
    throw InputError("--steps", fmt::format("{} is not in 1 to {}", options.run.steps, most_steps));
  }
  check_threads(options.run.threads);
  if (!options.restart.replan.empty() && !options.spawn) {
    throw InputError("--replan", "goes with --spawn: it takes one process that starts all ranks again on the new plan");
  }
  if (options.run.checkpoints.folder.empty() && (options.resume || !options.checkpoint_every.empty())) {
    throw InputError("--resume and --checkpoint-every go with --checkpoint FOLDER");
  }
  if (options.run.checkpoints.keep < 1) throw InputError("--checkpoint-keep", "0; at least one stays");
  if (options.run.flows < 1 || options.run.flows > 64) {
    throw InputError("--flows", fmt::format("{} is not in 1 to 64", options.run.flows));
  }
}

void choose_transport(CommandOptions& options)
{
  if (!options.transport) return;
  options.run.transport = transport_from_text(*options.transport);
  if (options.in_process) throw InputError("--transport", "is for ranks that are processes: --spawn, --rank");
  if (options.run.transport == TransportChoice::Nccl && !is_gpu(options.run.device)) {
    throw InputError("--transport", "nccl is for GPUs; it goes with --device cuda");
  }
}

/// Refuses a plan that does not fit this workload, or that nobody has simulated.
void check_plan(const Plan& plan, const Workload& workload, const std::string& workload_hash,
                const CommandOptions& options)
{
  std::vector<std::string> lines;
  for (const auto& fault : placement_faults_of(plan, workload)) lines.push_back(options.plan + ": " + fault);
  if (!options.unvalidated) {
    for (const auto& fault : faults_of_stamp(plan, workload_hash, ISOBAR_VERSION)) {
      lines.push_back(options.plan + ": " + fault);
    }
  }
  if (options.run.emulate) {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const auto slowdown = plan.stages[i].devices.front().slowdown;
      constexpr double fastest_that_can_be = 1 - 1e-9;
      if (slowdown && *slowdown >= fastest_that_can_be) continue;
      lines.push_back(fmt::format("{}: stages[{}].devices[0].slowdown: {}", options.plan, i,
                                  slowdown ? fmt::format("{:.6g}; --emulate slows devices down, 1 and more", *slowdown)
                                           : "missing, and --emulate needs it; plan again"));
    }
  }
  if (!lines.empty()) throw InputError(lines);
}

/// The files that a run reads; "" where it reads none.
std::vector<std::string> inputs_of(const CommandOptions& options)
{
  return {options.workload,        options.plan,
          options.profile,         options.data.train,
          options.data.evaluation, options.data.vocabulary,
          options.weights,         options.run.network.secret_file,
          options.restart.replan};
}

/// What a run writes at its end, opened before it begins: what cannot be written is not trained. Rank 0 writes for all.
struct Outputs {
  explicit Outputs(const CommandOptions& options)
  {
    if (options.rank.value_or(0) != 0) return;
    if (!options.trace.empty()) trace.emplace(options.trace);
    if (!options.output.empty()) result.emplace(options.output);
  }

  std::optional<TemporaryFile> trace;
  std::optional<TemporaryFile> result;
};

/// Whether the rank that tells of each step is here: the last stage's.
bool has_the_loss(const CommandOptions& options, const Plan& plan)
{
  return !options.rank || *options.rank + 1 == plan.stages.size();
}

/// Writes and prints what all ranks have measured.
void report(const Plan& plan, const Program& program, const MeasuredRun& measured, const CommandOptions& options,
            double samples, Outputs& outputs)
{
  // The dearest first: a disk that is full costs no more than it must.
  const RunResult result = result_of(plan, program, measured, samples);
  fmt::print("{}", options.json ? result.json : result.summary);
  std::fflush(stdout);
  if (!result.note.empty()) options.run.warn(result.note);
  if (outputs.result) {
    outputs.result->write(result.json);
    outputs.result->keep();
  }
  if (outputs.trace) {
    outputs.trace->write(trace_of(plan, measured));
    outputs.trace->keep();
  }
}

/// The workload as the plan has it.
Workload as_planned(Workload workload, const Plan& plan, const std::string& plan_file)
{
  if (plan.micro_batch && *plan.micro_batch != workload.micro_batch) {
    if (std::holds_alternative<std::monostate>(workload.model)) {
      throw InputError(plan_file, fmt::format("micro_batch: workload {} lists its layers, for micro-batches of {} "
                                              "samples; other sizes need a generator, such as model: gpt",
                                              shown(workload.name), workload.micro_batch));
    }
    if (plan.profile) {
      throw InputError(plan_file, fmt::format("micro_batch: {}, but {} was measured with micro-batches of {} samples",
                                              *plan.micro_batch, shown(plan.profile->name), workload.micro_batch));
    }
    workload = with_micro_batch(workload, *plan.micro_batch);
  }
  if (plan.recompute.empty()) return workload;
  if (workload.memory_model == MemoryModel::Sky) {
    throw InputError(plan_file, "recompute: memory_model sky knows nothing of recomputation");
  }
  if (plan.recompute.back() >= workload.layers.size()) {
    throw InputError(plan_file, fmt::format("recompute: there is no layer {}; workload {} has {}",
                                            plan.recompute.back(), shown(workload.name), workload.layers.size()));
  }
  return with_recomputation(workload, plan.recompute);
}

/// Which rank this process is, as flags and launchers say; none where all ranks start here or in places of --ranks.
std::optional<LaunchPlace> launched_place(const CommandOptions& options)
{
  if (options.spawn || options.in_process || !options.ranks.empty()) return std::nullopt;
  const LaunchFlags flags = {.rank = options.rank, .world = options.launch.world, .master = options.launch.master};
  auto place = launch_place(environment_of_this_process(), flags);
  if (!place) throw InputError(ways_to_run);
  say(fmt::format("rank {} of {} by {}; rank 0 listens at {}", place->rank, place->world_size,
                  shown(place->source, 200), text_of(place->master)));
  return place;
}

/// What all ranks must be told alike; files by their hashes.
std::string settings_of(const CommandOptions& options)
{
  const RunOptions& run = options.run;
  std::string text = fmt::format("--steps {} --seed {} --flows {} --heartbeat {}{}", run.steps, run.seed, run.flows,
                                 text_of(run.limits.heartbeat), run.emulate ? " --emulate" : "");
  if (!options.data.evaluation.empty()) text += " --evaluate " + data_fingerprint(options.data.evaluation);
  if (!run.checkpoints.folder.empty()) text += " --checkpoint";
  return text + ", of the run " + run.checkpoints.run;
}

/// The place of a launched rank in the run, once it has met the others.
RankPlace meet_others(const LaunchPlace& place, const CommandOptions& options, const Plan& plan,
                      const Workload& workload, const std::string& workload_hash)
{
  refuse_open_bind(options.run.network, place.master.host, "the master", "--master");
  const auto secret = secret_of(options.run.network);  // before torch has threads
  RankFacts facts = facts_of_device(options.run.device, options.run.threads);
  facts.host = place.node.empty() ? host_name() : place.node;
  facts.plan_device = options.launch.plan_device;
  facts.version = ISOBAR_VERSION;
  facts.plan_hash = hash_of(plan);
  facts.workload_hash = workload_hash;
  facts.data_hash = nlohmann::json::parse(options.run.checkpoints.run).value("data", "");
  facts.settings = options.run.settings;
  facts.first_step = options.run.first_step;
  Meeting meeting = meet({.rank = place.rank,
                          .ranks = place.world_size,
                          .master = place.master,
                          .secret = secret,
                          .tls = uses_tls(options.run.network, {place.master}),
                          .bind = options.run.network.bind,
                          .deadline = options.run.limits.connect},
                         facts, preflight_of(plan, workload.dtype, options.launch, options.run.emulate));
  std::fputs(meeting.in_words.c_str(), stderr);
  return {meeting.device, std::move(meeting.endpoints), secret, std::move(meeting.listener)};
}

/// The place of a rank that --rank and --ranks say.
RankPlace place_said(const CommandOptions& options, const Program& program)
{
  if (*options.rank >= program.ranks()) {
    throw InputError("--rank", fmt::format("{} is not below the plan's {} ranks", *options.rank, program.ranks()));
  }
  std::vector<Endpoint> endpoints;
  for (const auto& endpoint : options.ranks) {
    if (std::count(options.ranks.begin(), options.ranks.end(), endpoint) > 1) {
      throw InputError("--ranks", in_quotes(endpoint) + " stands there twice; each rank listens at a place of its own");
    }
    endpoints.push_back(endpoint_from_text("--ranks", endpoint));
  }
  if (endpoints.size() != program.ranks()) {
    throw InputError("--ranks",
                     fmt::format("names {} places; the plan has {} ranks", endpoints.size(), program.ranks()));
  }
  return {*options.rank, std::move(endpoints), secret_of(options.run.network)};
}

/// The workload, with the work that its profiled times mean where a profile is given.
Workload read_inputs(const Plan& plan, const std::string& workload_text, CommandOptions& options)
{
  Workload workload = workload_from_text(workload_text, options.workload);
  if (options.profile.empty()) return workload;
  if (!options.run.emulate || is_gpu(options.run.device)) {
    throw InputError("--profile", "says how fast emulated devices are; it goes with --emulate on a CPU");
  }
  const std::string hash = fingerprint(read_file(options.profile));
  if (!plan.profile || plan.profile->hash != hash) {
    throw InputError(options.profile,
                     fmt::format("has hash {}; the plan was made with {}", hash,
                                 plan.profile ? "a profile with hash " + shown(plan.profile->hash) : "none"));
  }
  const DeviceProfile profile = read_profile(options.profile);
  apply_profile(profile, options.profile, workload);
  options.run.profiled_speed = profile.speed;
  return workload;
}

/// The folder of checkpoints, which one of the run's processes holds for all of them.
std::optional<FolderLock> hold_checkpoints(const CommandOptions& options, const std::optional<LaunchPlace>& launched)
{
  const std::string& folder = options.run.checkpoints.folder;
  if (folder.empty()) return std::nullopt;
  CheckpointStore(folder).require_writable();
  const std::size_t rank = launched ? launched->rank : options.rank.value_or(0);
  if (rank != 0) return std::nullopt;
  return std::make_optional<FolderLock>(folder);
}

/// The newest sound checkpoint where the run is to go on; none where it begins.
std::optional<Checkpoint> checkpoint_to_resume(CommandOptions& options, std::size_t layers)
{
  const std::string& folder = options.run.checkpoints.folder;
  if (folder.empty()) return std::nullopt;
  const CheckpointStore store(folder);
  const auto newest =
      store.newest_complete(options.resume ? CheckpointStore::Check::Elements : CheckpointStore::Check::Files);
  if (!options.resume) {
    if (newest.step || !newest.skipped.empty()) {
      throw InputError(folder, fmt::format("holds {} already; go on from it by --resume, or name another folder",
                                           newest.step ? fmt::format("a checkpoint of step {}", *newest.step)
                                                       : "parts of checkpoints"));
    }
    return std::nullopt;
  }
  for (const auto& skipped : newest.skipped) say(fmt::format("left out: {}", skipped));
  // A run that is killed leaves two at most that its ranks were writing.
  constexpr std::size_t most_unfinished = 2;
  if (!newest.step && (newest.damaged || newest.skipped.size() > most_unfinished)) {
    throw InputError(folder, "no checkpoint there is whole; bring back what is missing, or name another folder");
  }
  if (!newest.step) {
    say(fmt::format("{}: no complete checkpoint; beginning at step 0", folder));
    return std::nullopt;
  }
  Checkpoint checkpoint = store.open(*newest.step);
  if (checkpoint.run() != options.run.checkpoints.run) {
    throw InputError(checkpoint.where(), fmt::format("was written by another run: {}; this one is {}",
                                                     shown(checkpoint.run(), 300), options.run.checkpoints.run));
  }
  if (checkpoint.layers() != layers) {
    throw InputError(checkpoint.where(),
                     fmt::format("has {} layers; the workload has {}", checkpoint.layers(), layers));
  }
  say(fmt::format("going on from {}", checkpoint.where()));
  options.run.first_step = checkpoint.step();
  return checkpoint;
}

/// What a run's loss curve follows from, besides the program.
std::string run_facts(const CommandOptions& options, const Plan& plan, const std::string& workload_hash,
                      const std::optional<Weights>& weights)
{
  nlohmann::ordered_json facts = {
      {"workload", workload_hash}, {"microbatches", plan.goal.microbatches}, {"seed", options.run.seed}};
  if (plan.micro_batch) facts["micro_batch"] = *plan.micro_batch;
  if (!options.data.train.empty()) facts["data"] = data_fingerprint(options.data.train);
  if (!options.data.vocabulary.empty()) facts["vocabulary"] = data_fingerprint(options.data.vocabulary);
  if (weights) facts["weights"] = weights->fingerprint();
  return facts.dump();
}

/// Data files as the ranks read them.
struct Data {
  Data(const CommandOptions& options, const Workload& workload, std::uint64_t microbatches)
      : datasets(open_datasets(options.data, workload))
  {
    if (datasets.train) batches = dataset_batches(workload, *datasets.train, microbatches);
    if (!datasets.evaluation) return;
    evaluation = dataset_batches(workload, *datasets.evaluation, microbatches);
    const std::uint64_t samples_of_step = workload.micro_batch * microbatches;
    evaluation_steps = (datasets.evaluation->evaluation_samples() + samples_of_step - 1) / samples_of_step;
  }

  Datasets datasets;
  std::unique_ptr<BatchSource> batches;
  std::unique_ptr<BatchSource> evaluation;
  std::uint64_t evaluation_steps = 0;
};

ExitCode run(CommandOptions options)
{
  check_options(options);
  const auto launched = launched_place(options);
  if (launched && options.device == "cuda:local") options.device = fmt::format("cuda:{}", launched->local_rank);
  options.run.device = device_from_text(options.device);
  choose_transport(options);
  options.run.tell = [quiet = options.json](const std::string& line) {
    if (!quiet) fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  options.run.warn = say_here();
  const Plan plan = read_plan(options.plan);
  const std::string workload_text = read_file(options.workload);
  const Workload workload = as_planned(read_inputs(plan, workload_text, options), plan, options.plan);
  if (plan.stages.empty()) {
    fmt::print("{}: there is no placement to run ({}): {}\n", options.plan, name_of(plan.outcome), shown(plan.reason));
    return ExitCode::Infeasible;
  }
  check_plan(plan, workload, fingerprint(workload_text), options);
  const std::vector<std::string> output_files = {options.output, options.trace, options.log.json_lines,
                                                 options.log.prometheus};
  refuse_overwriting(inputs_of(options), output_files);

  const auto program = schedules::make_program(plan, workload);
  options.run.limits = limits_of(plan, options);
  const double samples = static_cast<double>(workload.micro_batch * plan.goal.microbatches);
  const Data data(options, workload, plan.goal.microbatches);
  options.run.batches = data.batches.get();
  options.run.evaluation = data.evaluation.get();
  options.run.evaluation_steps = data.evaluation_steps;
  read_checkpoint_every(options.checkpoint_every, options.run.checkpoints);
  std::optional<Weights> weights;
  if (!options.weights.empty()) {
    options.run.weights = &weights.emplace(options.weights);
    refuse_overwriting(weights->files(), output_files);
  }
  options.run.checkpoints.run = run_facts(options, plan, fingerprint(workload_text), weights);
  const auto held = hold_checkpoints(options, launched);
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
                                 fmt::join(devices_of(plan), ", ")));
  }
  if (launched) place = meet_others(*launched, options, plan, workload, fingerprint(workload_text));
  if (!options.ranks.empty()) place = place_said(options, *program);
  if (place) options.rank = place->rank;
  options.log.samples = samples;
  options.log.table = !options.json;
  options.log.append = options.resume;
  options.log.first_step = options.run.first_step;
  std::optional<StepLog> log;
  if (has_the_loss(options, plan)) log.emplace(options.log);
  Outputs outputs(options);
  const GracefulStop stop;
  options.run.stop = &stop;
  const StepEnded step_ended = [&log](const StepReport& step) { log.value()(step); };

  const auto ended = [&]() -> RankOutcome {
    if (place) return run_rank(workload, plan, *program, std::move(*place), options.run, step_ended);
    auto measured =
        (options.spawn ? run_in_processes : run_in_process)(workload, plan, *program, options.run, step_ended);
    const bool evaluation_is_cut = data.evaluation && !measured.evaluation();
    return {measured.first_step() + measured.steps(), evaluation_is_cut, std::move(measured)};
  }();
  const auto& checkpoints = options.run.checkpoints;
  // All ranks have written their last one.
  if (ended.measured && !checkpoints.folder.empty()) CheckpointStore(checkpoints.folder).keep_last(checkpoints.keep);
  if (ended.measured) report(plan, *program, *ended.measured, options, samples, outputs);
  if (ended.steps_done >= options.run.steps && !ended.evaluation_is_cut) return ExitCode::Done;
  say(fmt::format("interrupted; {} of {} steps are done", ended.steps_done, options.run.steps));
  return ExitCode::Interrupted;
}

}  // namespace

void add_run_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("run", "train a model as a plan says");
  auto options = std::make_shared<CommandOptions>();
  add_file(*command, "WORKLOAD", options->workload, "workload file (YAML)")->required();
  add_file(*command, "--plan", options->plan, "plan file (JSON)")->required();
  command->add_flag("--spawn", options->spawn, "every rank a process on this machine, over TCP");
  command->add_flag("--in-process", options->in_process, "every rank a thread of this process");
  add_count(*command, "--rank", options->rank,
            "which rank this process is: with --ranks the plan's stage of this number, with --world and --master as "
            "--map says; the first stage's rank writes and prints what all have measured");
  command
      ->add_option("--ranks", options->ranks, "where every rank listens, HOST:PORT in the order of the plan's stages")
      ->delimiter(',');
  add_launch_options(*command, options->launch);
  add_network_options(*command, options->run.network);
  add_count(*command, "--steps", options->run.steps, "steps to train in all (default: 10)");
  add_data_options(*command, options->data);
  add_file(*command, "--weights", options->weights,
           "a Hugging Face model to begin with: its folder, safetensors file or index");
  add_file(*command, "--checkpoint", options->run.checkpoints.folder,
           "folder for checkpoints, shared by all ranks; one is written at the end in any case");
  command->add_option("--checkpoint-every", options->checkpoint_every,
                      "write one each so many steps, such as 100, or each so long, such as 10 min");
  add_count(*command, "--checkpoint-keep", options->run.checkpoints.keep, "so many stay (default: 3)");
  command->add_flag("--resume", options->resume, "go on from the newest sound checkpoint, on any split of the model");
  add_count(*command, "--seed", options->run.seed, "of parameters, data and dropout (default: 1)");
  command->add_option("--device", options->device,
                      "of every rank here: cpu, cuda, cuda:N, or under a launcher cuda:local, by the rank's number on "
                      "its machine (default: cpu)");
  add_count(*command, "--threads", options->run.threads, "of each rank's computation (default: 1)");
  add_count(*command, "--flows", options->run.flows, "TCP connections of each link (default: 1)");
  command->add_option("--transport", options->transport,
                      "of ranks that are processes: tcp (default); nccl, from GPU to GPU; auto, nccl where it can be");
  command->add_flag("--emulate", options->run.emulate,
                    "make each rank as slow, and its memory as small, as the plan takes its device for");
  add_file(*command, "--profile", options->profile,
           "with --emulate: the plan's profile, so that ranks compute as steadily as it says");
  command->add_flag("--unvalidated", options->unvalidated, "run a plan that was not simulated as it is");
  command->add_option(
      "--deadline", options->deadline,
      "how long a transfer may wait, whatever for (default: while any rank is at work, and then 30 s and 10 predicted "
      "steps)");
  command->add_option("--heartbeat", options->heartbeat,
                      "a rank without a sign of life for so long is dead (default: 10 s, or half of --deadline)");
  add_restart_options(*command, options->restart);
  add_file(*command, "--trace", options->trace, "measured timeline to write (Chrome trace JSON)");
  add_file(*command, "--log", options->log.json_lines, "a line of JSON for each step");
  add_file(*command, "--tensorboard", options->log.tensorboard, "a folder of events for TensorBoard");
  add_file(*command, "--prometheus", options->log.prometheus,
           "the last step in Prometheus' text format, replaced after each");
  add_file(*command, "-o,--output", options->output, "result file to write (JSON)");
  command->add_flag("--json", options->json, "print the result as JSON");
  command->footer(footer);
  command->callback([options, &action] {
    action = [options] {
      return run_restarted(
          options->restart,
          {options->workload, options->plan, options->run.checkpoints.folder, options->resume, inputs_of(*options)},
          [&options](const std::string& plan, bool resume) {
            CommandOptions of_attempt = *options;
            of_attempt.plan = plan;
            of_attempt.resume = resume;
            return run(of_attempt);
          });
    };
  });
}

}  // namespace isobar::exec

#include "exec/commands.hpp"

#include "core/chrome_trace.hpp"
#include "core/device_profile.hpp"
#include "core/files.hpp"
#include "core/plan.hpp"
#include "core/quantity_text.hpp"
#include "core/workload.hpp"
#include "exec/device.hpp"
#include "exec/run.hpp"
#include "exec/step_log.hpp"
#include "schedules/schedule.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(Example:
  isobar simulate platform.xml workloads/bert10.yaml --plan plan.json --stamp
  isobar run workloads/bert10.yaml --plan plan.json --spawn --steps 20 --trace measured.json
)";

struct CommandOptions {
  std::string workload;
  std::string plan;
  bool spawn = false;
  bool in_process = false;
  std::optional<std::size_t> rank;
  std::vector<std::string> ranks;
  std::string profile;
  bool unvalidated = false;
  std::string device = "cpu";
  std::optional<std::string> transport;
  std::optional<std::string> deadline;
  std::string trace;
  StepLogOptions log;
  std::string output;
  bool json = false;
  RunOptions run;
};

/// The middle of the steps after the first, which makes room for what the others use again.
Seconds typical_step(std::vector<Seconds> times)
{
  if (times.size() > 1) times.erase(times.begin());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Time that a stage computes in a typical step; an AllReduce waits for others.
Seconds compute_time(const Program& program, std::size_t rank, const RankReport& report, std::uint64_t steps)
{
  const auto& times = report.lanes[static_cast<std::size_t>(Lane::Compute)];
  const std::uint64_t length = program.length(rank, Lane::Compute);
  std::vector<Seconds> by_step(steps);
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (program.at(rank, Lane::Compute, i % length).opcode == Opcode::AllReduce) continue;
    by_step[i / length] += times[i].end - times[i].begin;
  }
  return typical_step(by_step);
}

nlohmann::ordered_json result_of(const Plan& plan, const Program& program, const MeasuredRun& measured,
                                 const CommandOptions& options, double samples)
{
  using Json = nlohmann::ordered_json;
  const auto step_times = measured.step_times();
  const Seconds typical = typical_step(step_times);
  Json stages = Json::array();
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const std::string& device = plan.stages[i].device();
    Json stage = {{"device", device},
                  {"compute_s", compute_time(program, i, measured.ranks()[i], options.run.steps).value},
                  {"peak_memory_bytes", measured.ranks()[i].peak_memory.value}};
    if (plan.stamp) stage["simulated_peak_memory_bytes"] = plan.stamp->peak_memory.at(device).value;
    stages.push_back(std::move(stage));
  }
  Json result = {{"schema", "isobar-run/1"},
                 {"step_time_s", typical.value},
                 {"simulated_step_time_s", plan.stamp ? Json(plan.stamp->step_time.value) : Json(nullptr)},
                 {"samples_per_s", samples / typical.value},
                 {"step_times_s", Json::array()},
                 {"losses", measured.ranks()[plan.stages.size() - 1].losses},
                 {"stages", std::move(stages)}};
  for (const Seconds time : step_times) result["step_times_s"].push_back(time.value);
  return result;
}

std::string summary_of(const nlohmann::ordered_json& result)
{
  std::string text;
  const double step = result["step_time_s"];
  if (result["simulated_step_time_s"].is_null()) {
    text = fmt::format("\nstep {:.4g} s (median after the first), {:.4g} samples/s; not simulated before\n\n", step,
                       result["samples_per_s"].get<double>());
  } else {
    const double simulated = result["simulated_step_time_s"];
    text = fmt::format("\nstep {:.4g} s (median after the first), {:.4g} samples/s; simulated {:.4g} s ({:+.1f} %)\n\n",
                       step, result["samples_per_s"].get<double>(), simulated, 100 * (simulated / step - 1));
  }
  text += fmt::format("{:<16}  {:>9}  {:>11}  {:>9}\n", "device", "compute s", "peak memory", "simulated");
  for (const auto& stage : result["stages"]) {
    const auto simulated = stage.find("simulated_peak_memory_bytes");
    text += fmt::format("{:<16}  {:>9.4g}  {:>11}  {:>9}\n", stage["device"].get<std::string>(),
                        stage["compute_s"].get<double>(), text_of(Bytes(stage["peak_memory_bytes"].get<double>())),
                        simulated == stage.end() ? "–" : text_of(Bytes(simulated->get<double>())));
  }
  return text;
}

void write_trace(TemporaryFile& file, const Plan& plan, const MeasuredRun& measured)
{
  std::vector<std::string> names;
  for (const auto& stage : plan.stages) names.push_back(stage.device());
  if (plan.data_server) names.push_back(*plan.data_server);
  std::ostringstream text;
  ChromeTraceWriter writer(text, names);
  measured.replay(writer, names);
  writer.finish();
  file.write(text.str());
  file.keep();
}

Seconds deadline_from(const std::string& text)
{
  try {
    return seconds_from_text(text);
  } catch (const std::invalid_argument& fault) {
    throw InputError("--deadline", fault.what());
  }
}

void check_options(const CommandOptions& options)
{
  const int ways = static_cast<int>(options.spawn) + static_cast<int>(options.in_process) +
                   static_cast<int>(options.rank.has_value());
  if (ways != 1) {
    throw InputError(
        "say where the ranks run: --spawn (processes on this machine), --in-process (threads of this one), or --rank N "
        "with --ranks HOST:PORT,… (this one here, the others elsewhere)");
  }
  if (options.rank.has_value() != !options.ranks.empty()) throw InputError("--rank and --ranks go together");
  constexpr std::uint64_t most_steps = 1'000'000'000;
  if (options.run.steps < 1 || options.run.steps > most_steps) {
    throw InputError("--steps", fmt::format("{} is not in 1 to {}", options.run.steps, most_steps));
  }
  check_threads(options.run.threads);
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
  options.run.tell = [quiet = options.json](const std::string& line) {
    if (!quiet) fmt::print("{}\n", line);
    std::fflush(stdout);
  };
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
  if (outputs.trace) write_trace(*outputs.trace, plan, measured);
  const auto result = result_of(plan, program, measured, options, samples);
  const std::string text = result.dump(2) + "\n";
  if (outputs.result) {
    outputs.result->write(text);
    outputs.result->keep();
  }
  fmt::print("{}", options.json ? text : summary_of(result));
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

ExitCode run(CommandOptions options)
{
  check_options(options);
  options.run.device = device_from_text(options.device);
  choose_transport(options);
  const Plan plan = read_plan(options.plan);
  const std::string workload_text = read_file(options.workload);
  const Workload workload = with_recomputation(read_inputs(plan, workload_text, options), plan.recompute);
  if (plan.stages.empty()) {
    fmt::print("{}: there is no placement to run ({}): {}\n", options.plan, name_of(plan.outcome), shown(plan.reason));
    return ExitCode::Infeasible;
  }
  check_plan(plan, workload, fingerprint(workload_text), options);

  const auto program = schedules::make_program(plan, workload);
  options.run.deadline = options.deadline ? deadline_from(*options.deadline) : default_deadline(plan);
  const double samples = static_cast<double>(workload.micro_batch * plan.goal.microbatches);
  options.log.samples = samples;
  options.log.table = !options.json;
  std::optional<StepLog> log;
  if (has_the_loss(options, plan)) log.emplace(options.log);
  Outputs outputs(options);
  const StepEnded step_ended = [&log](const StepReport& step) { log.value()(step); };

  if (options.rank) {
    if (*options.rank >= program->ranks()) {
      throw InputError("--rank", fmt::format("{} is not below the plan's {} ranks", *options.rank, program->ranks()));
    }
  }
  const auto measured = [&]() -> std::optional<MeasuredRun> {
    if (options.rank) {
      return run_rank(workload, plan, *program, *options.rank, options.ranks, options.run, step_ended);
    }
    return (options.spawn ? run_in_processes : run_in_process)(workload, plan, *program, options.run, step_ended);
  }();
  if (!measured) return ExitCode::Done;  // rank 0 says what all have measured
  report(plan, *program, *measured, options, samples, outputs);
  return ExitCode::Done;
}

}  // namespace

void add_run_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("run", "train a model as a plan says");
  auto options = std::make_shared<CommandOptions>();
  command->add_option("WORKLOAD", options->workload, "workload file (YAML)")->required();
  command->add_option("--plan", options->plan, "plan file (JSON)")->required();
  command->add_flag("--spawn", options->spawn, "every rank a process on this machine, over TCP");
  command->add_flag("--in-process", options->in_process, "every rank a thread of this process");
  command->add_option("--rank", options->rank,
                      "which rank this process is, with --ranks; rank 0 writes and prints what all have measured");
  command->add_option("--ranks", options->ranks, "where every rank listens, HOST:PORT in order")->delimiter(',');
  command->add_option("--steps", options->run.steps, "steps to train (default: 10)");
  command->add_option("--seed", options->run.seed, "of parameters, data and dropout (default: 1)");
  command->add_option("--device", options->device, "of every rank here: cpu, cuda or cuda:N (default: cpu)");
  command->add_option("--threads", options->run.threads, "of each rank's computation (default: 1)");
  command->add_option("--flows", options->run.flows, "TCP connections of each link (default: 1)");
  command->add_option("--transport", options->transport,
                      "of ranks that are processes: tcp (default); nccl, from GPU to GPU; auto, nccl where it can be");
  command->add_flag("--emulate", options->run.emulate,
                    "make each rank as slow, and its memory as small, as the plan takes its device for");
  command->add_option("--profile", options->profile,
                      "with --emulate: the plan's profile, so that ranks compute as steadily as it says");
  command->add_flag("--unvalidated", options->unvalidated, "run a plan that was not simulated as it is");
  command->add_option("--deadline", options->deadline,
                      "how long a transfer may wait (default: 10 predicted steps, at least 30 s)");
  command->add_option("--trace", options->trace, "measured timeline to write (Chrome trace JSON)");
  command->add_option("--log", options->log.json_lines, "a line of JSON for each step");
  command->add_option("--tensorboard", options->log.tensorboard, "a folder of events for TensorBoard");
  command->add_option("--prometheus", options->log.prometheus,
                      "the last step in Prometheus' text format, replaced after each");
  command->add_option("-o,--output", options->output, "result file to write (JSON)");
  command->add_flag("--json", options->json, "print the result as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace isobar::exec

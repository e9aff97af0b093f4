#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/mix_simulation.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/simulation.hpp"
#include "cli/rounds/outer_simulation.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/rounds/played_round.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <map>
#include <thread>

namespace isobar::cli {

namespace {

constexpr auto simulate_footer = R"(Example:
  isobar simulate platforms/sky64.xml workloads/bert160.yaml \
    --plan plan.json --trace trace.json
)";

struct SimulateOptions {
  InputOptions inputs;
  std::string plan;
  std::string mix;
  std::uint64_t iterations = 1;
  std::optional<std::uint64_t> rounds;  ///< of a mix or of a plan of rounds
  std::string trace;
  std::string output;
  bool stamp = false;
  bool unfolded = false;
  bool json = false;
};

/// The step beside its bound, which is of a step that begins on idle devices. Later steps may take less.
std::string step_text(const nlohmann::json& result)
{
  const auto& steps = result["step_times_s"];
  std::string text = fmt::format("step {:.6g} s", result["step_time_s"].get<double>());
  if (result.contains("step_interval_s")) {
    const auto& ends = result["step_interval_s"];
    text += fmt::format(" ({})", text_of(StepInterval{Seconds(ends[0].get<double>()), Seconds(ends[1].get<double>())}));
  }
  if (steps.size() > 1) {
    text += fmt::format(", the mean of {}; the first takes {:.6g} s", steps.size(), steps.front().get<double>());
  }
  return fmt::format("{}; no order of its passes below {:.6g} s", text, result["step_bound_s"].get<double>());
}

std::string summary_of(const std::string& result_json)
{
  const auto result = nlohmann::json::parse(result_json);
  struct DeviceTimes {
    Seconds compute;
    Seconds send;
  };
  std::map<std::string, DeviceTimes> times;  // of all stages of a device
  for (const auto& stage : result["stages"]) {
    DeviceTimes& device = times[stage["device"].get<std::string>()];
    device.compute += Seconds(stage["compute_s"].get<double>());
    device.send += Seconds(stage["send_s"].get<double>());
  }
  std::vector<std::vector<std::string>> devices;
  for (const auto& stage : result["stages"]) {
    const auto name = stage["device"].get<std::string>();
    const auto found = times.extract(name);
    if (found.empty()) continue;  // another stage of a device that has its row
    devices.push_back({name, text_of(found.mapped().compute), text_of(found.mapped().send),
                       text_of(Seconds(stage["idle_s"].get<double>())),
                       text_of(Bytes(stage["peak_memory_bytes"].get<double>()))});
  }
  const std::string acting =
      result.contains("acting_devices")
          ? fmt::format("{} of {} devices act for all equal ones{}; --unfolded plays every one\n",
                        result["acting_devices"].get<std::size_t>(), devices.size(),
                        result.contains("folding") ? fmt::format(" ({})", result["folding"].get<std::string>()) : "")
          : "";
  const auto part = [&result](const char* key, const char* format, double unit) {
    return result[key].is_null() ? "" : fmt::format(fmt::runtime(format), result[key].get<double>() * unit);
  };
  return fmt::format(
      "{}\n{}{}{}layers by {}\n{}{} activities in {:.3g} s (SimGrid {}, network {}; --json lists every setting)\n\n{}",
      step_text(result), part("tokens_per_s", "{:.1f} tokens/s, ", 1), part("mfu_fraction", "MFU {:.1f} %, ", 100),
      part("bubble_fraction", "bubble {:.1f} %, ", 100), result["compute"].get<std::string>(), acting,
      result["activities"].get<std::uint64_t>(), result["wall"]["simulate_s"].get<double>(),
      result["simgrid_version"].get<std::string>(), result["network"]["network/model"].get<std::string>(),
      results::table_of({"device", "compute", "send", "idle", "peak memory"}, devices));
}

std::string summary_of_mix(const std::string& result_json)
{
  const auto result = nlohmann::json::parse(result_json);
  const auto time = [](const nlohmann::json& value) { return text_of(Seconds(value.get<double>())); };
  const auto memory = [](const nlohmann::json& value) { return text_of(Bytes(value.get<double>())); };
  std::vector<std::vector<std::string>> jobs;
  for (const auto& job : result["jobs"]) {
    jobs.push_back({job["name"].get<std::string>(), fmt::format("{}", job["steps_per_round"].get<std::uint64_t>()),
                    time(job["step_time_s"]), time(job["solo_step_time_s"]),
                    fmt::format("{:.3f}", job["normalised_rate"].get<double>()), time(job["longest_wait_s"])});
  }
  std::vector<std::vector<std::string>> devices;
  for (const auto& device : result["devices"]) {
    devices.push_back({device["name"].get<std::string>(),
                       fmt::format("{:.1f} %", 100 * device["busy_fraction"].get<double>()),
                       memory(device["peak_memory_bytes"])});
  }
  return fmt::format(
      "round {:.6g} s, the mean of {}; none below {:.6g} s, which {} {} takes; gap {:.1f} %\n"
      "one job after the other {:.6g} s: {:.3f} times as long\n"
      "{} activities in {:.3g} s (SimGrid {}, network {}; --json lists every setting)\n\n{}\n{}",
      result["round_time_s"].get<double>(), std::max<std::uint64_t>(1, result["rounds"].get<std::uint64_t>() - 1),
      result["bound_s"].get<double>(), result["binds"]["kind"].get<std::string>(),
      result["binds"]["name"].get<std::string>(), 100 * result["gap_fraction"].get<double>(),
      result["serial_s"].get<double>(), result["speedup"].get<double>(), result["activities"].get<std::uint64_t>(),
      result["wall"]["simulate_s"].get<double>(), result["simgrid_version"].get<std::string>(),
      result["network"]["network/model"].get<std::string>(),
      results::table_of({"job", "steps per round", "step", "alone", "rate", "longest wait"}, jobs),
      results::table_of({"device", "busy", "peak memory"}, devices));
}

constexpr Seconds longest_simulation(1e9);

std::uint64_t rounds_of(const SimulateOptions& options, std::uint64_t otherwise)
{
  constexpr std::uint64_t most_rounds = 1'000'000;
  const std::uint64_t rounds = options.rounds.value_or(otherwise);
  if (rounds < 1 || rounds > most_rounds) {
    throw InputError("--rounds", fmt::format("{} is not in 1 to {}", rounds, most_rounds));
  }
  return rounds;
}

ExitCode simulate_jobs(const SimulateOptions& options)
{
  constexpr std::uint64_t rounds_of_mix = 10;
  const std::uint64_t rounds = rounds_of(options, rounds_of_mix);
  const auto& profiles = options.inputs.profiles;
  if (profiles.size() > 1) throw InputError("--profile", "is given twice; a mix takes one");
  const std::string profile = profiles.empty() ? "" : profiles.front();
  const MixInputs inputs =
      load_mix(options.inputs.platform, options.inputs.devices, profile, read_mix(options.mix), options.mix);
  auto read = inputs.files();
  read.push_back(options.mix);
  refuse_overwriting(read, {options.output, options.trace});
  const auto faults = memory_faults_of(inputs);
  if (!faults.empty()) throw InputError(faults);
  OutputFile output(options.output);
  std::optional<TemporaryFile> trace;
  if (!options.trace.empty()) trace.emplace(options.trace);
  const auto alone = simulate_alone(inputs, rounds, std::thread::hardware_concurrency());
  const auto work = [&] { return simulate_mix(inputs, alone, rounds, trace ? trace->name() : ""); };
  const std::string result = run_in_child(work, longest_simulation).output_or_throw();
  if (trace) trace->keep();
  output.write(result);
  if (!output.is_standard_output()) print(options.json ? result : summary_of_mix(result));
  return ExitCode::Done;
}

ExitCode simulate_outer(const SimulateOptions& options)
{
  const std::uint64_t rounds = rounds_of(options, schedules::rounds_to_play);
  for (const auto& [option, is_given] :
       {std::pair("--iterations", options.iterations != 1), std::pair("--stamp", options.stamp),
        std::pair("--unfolded", options.unfolded)}) {
    if (is_given) throw InputError(option, "is for plans without rounds; leave it out");
  }
  const OuterPlan plan = read_outer_plan(options.plan);
  const Inputs inputs = load_rounds(options.inputs, plan, options.plan);
  auto read = inputs.files();
  read.push_back(options.plan);
  refuse_overwriting(read, {options.output, options.trace});
  check_rounds(plan, options.plan, inputs);
  OutputFile output(options.output);
  std::optional<TemporaryFile> trace;
  if (!options.trace.empty()) trace.emplace(options.trace);
  const auto work = [&] { return simulate_rounds(inputs, plan, rounds, trace ? trace->name() : ""); };
  const std::string result = run_in_child(work, longest_simulation).output_or_throw();
  if (trace) trace->keep();
  output.write(result);
  if (!output.is_standard_output()) print(options.json ? result : summary_of_rounds(result));
  return ExitCode::Done;
}

ExitCode simulate(const SimulateOptions& options)
{
  constexpr std::uint64_t most_iterations = 1'000'000;
  if (options.iterations < 1 || options.iterations > most_iterations) {
    throw InputError("--iterations", fmt::format("{} is not in 1 to {}", options.iterations, most_iterations));
  }
  if (is_outer_plan(options.plan)) return simulate_outer(options);
  if (options.rounds) throw InputError("--rounds", "is for mixes and for plans made with --outer; write --iterations");
  Plan plan = schedules::read_scheduled_plan(options.plan);
  const Inputs inputs = load(options.inputs, plan, options.plan);
  auto read = inputs.files();
  read.push_back(options.plan);
  refuse_overwriting(read, {options.output, options.trace});
  check_plan(plan, options.plan, inputs);
  note_approximations(inputs);
  if (plan.stages.empty()) {
    const nlohmann::ordered_json answer = {{"outcome", name_of(plan.outcome)}, {"reason", plan.reason}};
    print(options.json ? json_lines(answer)
                       : fmt::format("{}: there is no placement to simulate ({}): {}\n", on_one_line(options.plan),
                                     name_of(plan.outcome), reason_of(plan)));
    return ExitCode::Infeasible;
  }
  OutputFile output(options.output);
  OutputFile stamped(options.stamp ? options.plan : "");
  std::optional<TemporaryFile> trace;
  if (!options.trace.empty()) trace.emplace(options.trace);
  const auto work = [&] {
    return simulate_plan(inputs, plan, options.iterations, trace ? trace->name() : "", options.unfolded);
  };
  const std::string result = run_in_child(work, longest_simulation).output_or_throw();
  if (trace) trace->keep();
  output.write(result);
  if (options.stamp) {
    plan.stamp = stamp_of(result, plan, inputs);
    stamped.write(plan_to_json(plan));
  }
  if (!output.is_standard_output()) print(options.json ? result : summary_of(result));
  return ExitCode::Done;
}

}  // namespace

void add_simulate_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("simulate", "simulate a plan on its platform with SimGrid");
  auto options = std::make_shared<SimulateOptions>();
  options->inputs.add_to(*command);
  auto* plan = add_file(*command, "--plan", options->plan, "plan file (JSON)");
  auto* mix = add_file(*command, "--mix", options->mix,
                       "mix file (JSON): jobs that share the platform, in place of WORKLOAD and --plan");
  command->option_defaults()->group("Schedule");
  auto* iterations =
      add_count(*command, "--iterations", options->iterations, "number of steps to simulate (default: 1)");
  add_count(*command, "--rounds", options->rounds,
            "number of rounds to simulate: of a mix (default: 10), or of a plan made with --outer (default: 3)");
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output, "result file to write (JSON)");
  add_file(*command, "--trace", options->trace, "timeline to write (Chrome trace JSON, for ui.perfetto.dev)");
  auto* stamp = command->add_flag("--stamp", options->stamp,
                                  "record in the plan file what was simulated and its result, as isobar run requires");
  auto* unfolded = command->add_flag("--unfolded", options->unfolded,
                                     "play every device, also where some of many equal ones can act for all");
  command->add_flag("--json", options->json, "print the result as JSON");
  command->footer(simulate_footer);
  auto* workload = command->get_option("WORKLOAD")->required(false);
  for (auto* option : {workload, plan, iterations, stamp, unfolded, command->get_option("--set")})
    mix->excludes(option);
  command->callback([options, &action, workload, plan] {
    if (!options->mix.empty()) {
      action = [options] { return simulate_jobs(*options); };
      return;
    }
    for (auto* option : {workload, plan}) {
      if (option->empty()) throw CLI::RequiredError(option->get_name());
    }
    action = [options] { return simulate(*options); };
  });
}

}  // namespace isobar::cli

#include "allocators/registry.hpp"
#include "cli/commands.hpp"
#include "cli/executor.hpp"
#include "cli/goal_options.hpp"
#include "cli/inputs.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/simulation.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/json_text.hpp"
#include "results/table.hpp"
#include "results/trace/validation.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::cli {

namespace {

constexpr auto validate_footer = R"(Example:
  isobar validate examples/tiny_gpt.yaml --slowdowns 2,4 -o /tmp/tiny
)";

struct ValidateOptions {
  std::string workload;
  WorkloadSettings settings;
  std::string output;
  GoalOptions goal;
  std::vector<std::string> allocators = {"exact"};
  std::string objective = "step";
  std::string slowdowns = "1";
  std::uint64_t steps = 10;
  std::string device = "cpu";
  bool in_process = false;
  double tolerance = 0.1;
  bool json = false;

  /// A file about this machine: NAME.xml or NAME.profile.json.
  std::string file(const std::string& ending) const { return output + ending; }
};

/// One allocator's plan, from planning to measurement.
struct Trial {
  std::string allocator;
  std::string name;  // prefix of its files; with several allocators NAME.ALLOCATOR

  /// A file that one step of the work leaves for the next, and for the user: NAME.plan.json, …
  std::string file(const std::string& ending) const { return name + ending; }
};

/// Prints on a terminal which step of the work has begun.
void show_progress(const std::string& what)
{
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "validate: {}\n", what);
}

/// Simulates the plan, writes NAME.simulated.json and stamps the plan. Returns the result.
std::string simulate(const ValidateOptions& options, const Trial& trial, Plan& plan, const Inputs& inputs)
{
  constexpr std::uint64_t most_steps = 3;  // the first may differ, the others are equal
  constexpr Seconds no_limit(1e9);
  TemporaryFile trace(trial.file(".simulated.json"));
  const auto work = [&] { return simulate_plan(inputs, plan, std::min(most_steps, options.steps), trace.name()); };
  std::string result = run_in_child(work, no_limit).output_or_throw();
  trace.keep();
  plan.stamp = stamp_of(result, plan, inputs);
  return result;
}

/// Executes the plan with isobar-exec, which writes NAME.measured.json and NAME.run.json.
ExitCode run(const ValidateOptions& options, const Trial& trial)
{
  std::vector<std::string> arguments = {"run",
                                        options.workload,
                                        "--plan",
                                        trial.file(".plan.json"),
                                        options.in_process ? "--in-process" : "--spawn",
                                        "--emulate",
                                        "--device",
                                        options.device,
                                        "--steps",
                                        std::to_string(options.steps),
                                        "--seed",
                                        std::to_string(options.goal.seed),
                                        "--trace",
                                        trial.file(".measured.json"),
                                        "-o",
                                        trial.file(".run.json")};
  // A GPU keeps the speed of its profile; a CPU does not, so its emulated devices are held to it.
  if (options.device == "cpu") arguments.insert(arguments.end(), {"--profile", options.file(".profile.json")});
  return run_executor(arguments);
}

ExitCode profile(const ValidateOptions& options)
{
  std::vector<std::string> arguments = {"profile",  options.workload, "--slowdowns", options.slowdowns,
                                        "--device", options.device,   "--seed",      std::to_string(options.goal.seed),
                                        "-o",       options.output};
  for (const auto& [key, value] : options.settings) arguments.insert(arguments.end(), {"--set", key + "=" + value});
  return run_executor(arguments);
}

/// The peak memory of each device of a plan in a result, which lists the replicas of stages in the plan's order. The
/// names that a measured result has for devices are those of the machine.
std::map<std::string, Bytes> peak_memory_of(const Plan& plan, const std::string& result)
{
  const auto stages = nlohmann::json::parse(result).at("stages");
  std::map<std::string, Bytes> peaks;
  const auto devices = devices_of(plan);
  const auto replicas = placed_shards(plan);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    peaks[devices[replicas[i].rank]] = Bytes(stages.at(i).at("peak_memory_bytes"));
  }
  return peaks;
}

results::Validation compare(const Trial& trial, const Plan& plan, const Inputs& inputs, const std::string& simulated)
{
  const auto program = schedules::make_program(plan, inputs.workload, inputs.platform.cluster());
  auto devices = devices_of(plan);
  const auto predicted_peaks = peak_memory_of(plan, simulated);
  const auto measured_peaks = peak_memory_of(plan, read_file(trial.file(".run.json")));
  std::vector<results::Pair<Bytes>> peaks;
  for (const auto& device : devices) peaks.push_back({predicted_peaks.at(device), measured_peaks.at(device)});
  if (plan.data_server) devices.push_back(*plan.data_server);
  return results::validate(results::Timeline::of(results::read_trace(trial.file(".simulated.json")), *program),
                           results::Timeline::of(results::read_trace(trial.file(".measured.json")), *program),
                           plan.allocator, devices, peaks);
}

void check_options(const ValidateOptions& options)
{
  refuse_folder("--output", options.output);
  if (!(options.tolerance >= 0 && options.tolerance <= 1e6)) {
    throw InputError("--tolerance", fmt::format("{} is not in 0 to 1e6; 0.1 is 10 %", options.tolerance));
  }
  if (options.steps < 2) throw InputError("--steps", "the first step does not count; use at least 2");
  for (const auto& allocator : options.allocators) {
    allocators::require_allocator(allocator);
    options.goal.goal(options.objective, allocator);
  }
  options.goal.check_search(options.allocators);
}

std::vector<Trial> trials_of(const ValidateOptions& options)
{
  if (options.allocators.size() == 1) return {{options.allocators.front(), options.output}};
  std::vector<Trial> trials;
  for (const auto& allocator : options.allocators) trials.push_back({allocator, options.output + "." + allocator});
  return trials;
}

/// Plans, simulates, executes and compares; sets `validation` and returns Done when all succeeded.
ExitCode try_out(const ValidateOptions& options, const Trial& trial, Inputs inputs,
                 std::optional<results::Validation>& validation)
{
  const Goal goal = options.goal.goal(options.objective, trial.allocator);
  recompute_layers(inputs.workload, options.goal.recompute_for(trial.allocator));
  show_progress(trial.allocator + ": plan");
  OutputFile plan_file(trial.file(".plan.json"));
  OutputFile result_file(trial.file(".result.json"));
  OutputFile output(trial.file(".validation.json"));
  Plan plan = make_plan(inputs, trial.allocator, goal, options.goal.limits(trial.allocator));
  if (plan.stages.empty()) {
    plan_file.write(plan_to_json(plan));
    throw_if_interrupted();
    say(fmt::format("{}: there is no placement to validate ({}): {}", trial.allocator, name_of(plan.outcome),
                    reason_of(plan)));
    return ExitCode::Infeasible;
  }
  show_progress(trial.allocator + ": simulate");
  const std::string simulated = simulate(options, trial, plan, inputs);
  plan_file.write(plan_to_json(plan));
  result_file.write(simulated);
  show_progress(trial.allocator + ": run");
  if (const ExitCode code = run(options, trial); code != ExitCode::Done) return code;
  validation = compare(trial, plan, inputs, simulated);
  output.write(validation_to_json(*validation, options.tolerance));
  return ExitCode::Done;
}

/// For people, of several plans: the predicted and the measured step time of each.
std::string summary_of(const std::vector<Trial>& trials, const std::vector<results::Validation>& validations)
{
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    const auto& step = validations[i].step_time;
    rows.push_back({trials[i].allocator, fmt::format("{:.4g}", step.predicted.value),
                    fmt::format("{:.4g}", step.measured.value), fmt::format("{:+.1f} %", 100 * step.error_fraction())});
  }
  return results::table_of({"allocator", "predicted s", "measured s", "error"}, rows);
}

ExitCode validate(const ValidateOptions& options)
{
  check_options(options);
  show_progress("profile");
  if (const ExitCode code = profile(options); code != ExitCode::Done) return code;
  InputOptions files;
  files.platform = options.file(".xml");
  files.workload = options.workload;
  files.settings = options.settings;
  files.profiles = {options.file(".profile.json")};
  const Inputs inputs = load(files);

  const auto trials = trials_of(options);
  std::vector<results::Validation> validations;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  double largest_error = 0;
  for (const auto& trial : trials) {
    std::optional<results::Validation> validation;
    if (const ExitCode code = try_out(options, trial, inputs, validation); code != ExitCode::Done) return code;
    largest_error = std::max(largest_error, std::abs(validation->step_time.error_fraction()));
    json.push_back(nlohmann::ordered_json::parse(validation_to_json(*validation, options.tolerance)));
    validations.push_back(std::move(*validation));
  }
  print(options.json             ? json_lines(json)
        : validations.size() > 1 ? summary_of(trials, validations)
                                 : text_of(validations.front()));
  if (largest_error <= options.tolerance) return ExitCode::Done;
  say(fmt::format("the predicted step time is {:.1f} % off; --tolerance allows {:.1f} %", 100 * largest_error,
                  100 * options.tolerance));
  return ExitCode::CheckFailed;
}

}  // namespace

void add_validate_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand(
      "validate", "profile this machine, plan, simulate and run (isobar-exec), and compare with the prediction");
  auto options = std::make_shared<ValidateOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "WORKLOAD", options->workload, "workload file (YAML)")->required();
  add_settings(*command, options->settings);
  command->option_defaults()->group("Goal");
  command
      ->add_option("--objective", options->objective,
                   fmt::format("what to minimize: {}", fmt::join(objective_names(), ", ")))
      ->capture_default_str();
  options->goal.add_goal_to(*command);
  command->option_defaults()->group("Search");
  add_list(*command, "--allocator", options->allocators,
           "allocators (isobar list allocators); with several, the files are named NAME.ALLOCATOR.…");
  options->goal.add_search_to(*command);
  command->option_defaults()->group("Schedule");
  add_count(*command, "--steps", options->steps, "number of steps to train (default: 10)");
  command->option_defaults()->group("Launch");
  command->add_option("--slowdowns", options->slowdowns,
                      "emulated devices: how many times slower than this machine each is, N,… (default: 1)");
  command->add_option("--device", options->device, "device to run on: cpu, cuda or cuda:N")->capture_default_str();
  command->add_flag("--in-process", options->in_process,
                    "run every rank as a thread of one process (default: a process each)");
  command->option_defaults()->group("Output");
  add_file(*command, "-o,--output", options->output,
           "NAME of the files to write: NAME.xml, .profile.json, .links.csv, .plan.json, .simulated.json, "
           ".result.json, .measured.json, .run.json, .validation.json")
      ->required();
  command->add_option("--tolerance", options->tolerance,
                      "largest accepted error of the step time, as a fraction (default: 0.1)");
  command->add_flag("--json", options->json, "print the comparison as JSON");
  command->footer(validate_footer);
  command->callback([options, &action] { action = [options] { return validate(*options); }; });
}

}  // namespace isobar::cli

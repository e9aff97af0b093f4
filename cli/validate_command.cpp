#include "cli/command.hpp"

#include "core/child_process.hpp"
#include "core/interrupt.hpp"
#include "results/validation.hpp"
#include "schedules/schedule.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>

namespace isobar::cli {

namespace {

constexpr auto footer = R"(Example:
  isobar validate examples/tiny_gpt.yaml --slowdowns 2,4 -o /tmp/tiny
)";

struct ValidateOptions {
  std::string workload;
  std::string output;
  GoalOptions goal;
  std::string allocator = "exact";
  std::string objective = "pipeline";
  std::string slowdowns = "1";
  std::uint64_t steps = 10;
  std::string device = "cpu";
  bool in_process = false;
  double tolerance = 0.1;
  bool json = false;

  /// NAME.xml, NAME.plan.json, …: what a part of the work leaves for the next, and for the user.
  std::string file(const std::string& ending) const { return output + ending; }
};

/// Says on a terminal which part of the work has begun.
void say(const std::string& what)
{
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "validate: {}\n", what);
}

/// The plan for the platform that was measured; it has no stages when there is none.
Plan make_plan(const ValidateOptions& options, const Goal& goal, const Inputs& inputs)
{
  Plan plan =
      allocators::allocate(options.allocator, inputs.workload, inputs.platform.cluster(), goal, options.goal.limits());
  plan.platform = inputs.platform_fingerprint;
  plan.workload = inputs.workload_fingerprint;
  plan.profile = inputs.profile_fingerprint;
  return plan;
}

/// Plays the plan, writes NAME.simulated.json, and stamps it. Returns the result.
std::string simulate(const ValidateOptions& options, Plan& plan, const Inputs& inputs)
{
  constexpr std::uint64_t enough = 3;  // the first may differ, the others are alike
  constexpr Seconds no_limit(1e9);
  TemporaryFile trace(options.file(".simulated.json"));
  const auto work = [&] { return simulate_plan(inputs, plan, std::min(enough, options.steps), trace.name()); };
  const std::string result = run_in_child(work, no_limit).output_or_throw();
  trace.keep();
  plan.stamp = stamp_of(result, plan, inputs);
  return result;
}

/// What isobar-exec measured of the plan: NAME.measured.json and NAME.run.json.
ExitCode run(const ValidateOptions& options)
{
  return run_executor({"run", options.workload, "--plan", options.file(".plan.json"),
                       options.in_process ? "--in-process" : "--spawn", "--emulate", "--device", options.device,
                       "--steps", std::to_string(options.steps), "--seed", std::to_string(options.goal.seed), "--trace",
                       options.file(".measured.json"), "-o", options.file(".run.json")});
}

ExitCode profile(const ValidateOptions& options)
{
  return run_executor({"profile", options.workload, "--slowdowns", options.slowdowns, "--device", options.device,
                       "--seed", std::to_string(options.goal.seed), "-o", options.output});
}

std::vector<results::Pair<Bytes>> peak_memory_of(const std::string& simulated, const std::string& measured)
{
  const auto foretold = nlohmann::json::parse(simulated).at("stages");
  const auto seen = nlohmann::json::parse(measured).at("stages");
  std::vector<results::Pair<Bytes>> pairs;
  for (std::size_t i = 0; i < foretold.size(); ++i) {
    pairs.push_back({Bytes(foretold[i].at("peak_memory_bytes")), Bytes(seen.at(i).at("peak_memory_bytes"))});
  }
  return pairs;
}

results::Validation compare(const ValidateOptions& options, const Plan& plan, const Inputs& inputs,
                            const std::string& simulated)
{
  const auto program = schedules::make_program(plan, inputs.workload);
  std::vector<std::string> devices;
  for (const auto& stage : plan.stages) devices.push_back(stage.device());
  if (plan.data_server) devices.push_back(*plan.data_server);
  return results::validate(results::Timeline::read(options.file(".simulated.json"), *program),
                           results::Timeline::read(options.file(".measured.json"), *program), devices,
                           peak_memory_of(simulated, read_file(options.file(".run.json"))));
}

ExitCode validate(const ValidateOptions& options)
{
  if (!(options.tolerance >= 0 && options.tolerance <= 1e6)) {
    throw InputError("--tolerance", fmt::format("{} is not in 0 to 1e6; 0.1 is 10 %", options.tolerance));
  }
  if (options.steps < 2) throw InputError("--steps", "the first step does not count; ask for 2 at least");
  const Goal goal = options.goal.goal(options.objective);
  allocators::require_policy(options.allocator);
  options.goal.check_polish({options.allocator}, {goal});
  OutputFile plan_file(options.file(".plan.json"));
  OutputFile output(options.file(".validation.json"));

  say("profile");
  if (const ExitCode code = profile(options); code != ExitCode::Done) return code;
  InputOptions files;
  files.platform = options.file(".xml");
  files.workload = options.workload;
  files.profile = options.file(".profile.json");
  const Inputs inputs = load(files, options.goal);

  say("plan");
  Plan plan = make_plan(options, goal, inputs);
  if (plan.stages.empty()) {
    plan_file.write(plan_to_json(plan));
    throw_if_interrupted();
    print(fmt::format("{}: there is no placement to validate ({}): {}\n", options.workload, name_of(plan.outcome),
                      reason_of(plan)));
    return ExitCode::Infeasible;
  }
  say("simulate");
  const std::string simulated = simulate(options, plan, inputs);
  plan_file.write(plan_to_json(plan));

  say("run");
  if (const ExitCode code = run(options); code != ExitCode::Done) return code;
  const auto validation = compare(options, plan, inputs, simulated);
  const std::string json = validation_to_json(validation, options.tolerance);
  output.write(json);
  print(options.json ? json : text_of(validation));
  const double error = std::abs(validation.step_time.error_fraction());
  if (error <= options.tolerance) return ExitCode::Done;
  fmt::print(stderr, "isobar: the step time is {:.1f} % off; --tolerance is {:.1f} %\n", 100 * error,
             100 * options.tolerance);
  return ExitCode::CheckFailed;
}

}  // namespace

void add_validate_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand(
      "validate", "profile this machine, plan, simulate and run (isobar-exec), and compare what was foretold");
  auto options = std::make_shared<ValidateOptions>();
  add_file(*command, "WORKLOAD", options->workload, "workload file (YAML)")->required();
  add_file(*command, "-o,--output", options->output,
           "NAME of the files to write: NAME.xml, .profile.json, .plan.json, .simulated.json, .measured.json, "
           ".run.json, .validation.json")
      ->required();
  command->add_option("--slowdowns", options->slowdowns,
                      "devices: how many times slower than this machine each is (default: 1)");
  command->add_option("--allocator", options->allocator, "policy (isobar list allocators)")->capture_default_str();
  command->add_option("--objective", options->objective, "sequential, bottleneck, pipeline")->capture_default_str();
  options->goal.add_to(*command);
  add_count(*command, "--steps", options->steps, "steps to train (default: 10)");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_flag("--in-process", options->in_process, "ranks are threads of one process; default: processes");
  command->add_option("--tolerance", options->tolerance, "error of the step time that is still good (default: 0.1)");
  command->add_flag("--json", options->json, "print the comparison as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return validate(*options); }; });
}

}  // namespace isobar::cli

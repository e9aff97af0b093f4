#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/simulation.hpp"
#include "cli/rounds/outer_simulation.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/compute/prediction_interval.hpp"
#include "core/jobs/grouping_checker.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/plan_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto verify_footer = R"(Exit codes: 0 every claim holds · 2 a file that cannot be read
            5 a false claim, or one that takes too long to check
A plan file cannot prove that there is no placement: if that is its outcome, 0
means that nothing in it is false.

Groups of jobs (isobar share --group) need no other file: isobar verify FILE.

Example:
  isobar verify platforms/sky64.xml workloads/bert160.yaml plan.json
)";

struct VerifyOptions {
  InputOptions inputs;
  std::string plan;
  bool json = false;
};

using Faults = std::vector<std::string>;

void compare(const char* key, const Fingerprint& claimed, const Fingerprint& given, Faults& faults)
{
  if (claimed.hash == given.hash) return;
  faults.push_back(fmt::format("inputs.{}: claims {} (hash {}); it is {} (hash {})", key, shown(text_of(claimed)),
                               shown(claimed.hash), text_of(given), given.hash));
}

/// What a plan that was made with another profile says of it; none if it was made with the given one. Its layers take
/// other times, so that no other claim is worth a check.
std::optional<std::string> other_profile(const Plan& plan, const Inputs& inputs)
{
  const Fingerprint& made = plan.profile ? *plan.profile : unmeasured;
  const Fingerprint& given = inputs.profile_fingerprint ? *inputs.profile_fingerprint : unmeasured;
  if (made.hash == given.hash) return std::nullopt;
  std::string options;
  for (const auto& file : cli::files_of(made)) options += fmt::format(" --profile {}", shown(file));
  return fmt::format("inputs.profile: the plan was made with {} (hash {}), and this is {} (hash {}); {}",
                     shown(made.name), shown(made.hash), on_one_line(given.name), given.hash,
                     plan.profile ? "give" + options : "leave --profile out");
}

/// Checks which files the stamp names; does not simulate again.
void check_stamp(const Plan& plan, const Inputs& inputs, Faults& faults)
{
  if (!plan.stamp) return;
  const auto compare_hash = [&faults](const char* key, const std::string& claimed, const std::string& given) {
    if (claimed == given) return;
    faults.push_back(fmt::format("stamp.{}: claims hash {}; it is {}", key, shown(claimed), given));
  };
  compare_hash("platform", plan.stamp->platform_hash, inputs.platform_fingerprint.hash);
  compare_hash("workload", plan.stamp->workload_hash, inputs.workload_fingerprint.hash);
  compare_hash("plan", plan.stamp->plan_hash, hash_of(plan));
}

/// Simulates again what `plan --simulate` simulated.
void check_simulated(const Plan& plan, const Inputs& inputs, Faults& faults)
{
  if (!plan.simulated || !faults.empty()) return;
  constexpr double tolerance = 1e-6;
  constexpr Seconds no_limit(1e9);
  const auto work = [&] { return simulate_plan(inputs, plan, 1, ""); };
  const auto result = nlohmann::json::parse(run_in_child(work, no_limit).output_or_throw());
  const double claimed = plan.simulated->step_time.value;
  const double found = result["step_time_s"].get<double>();
  if (std::abs(claimed - found) <= tolerance * found) return;
  const auto [claim, fact] = distinct_texts(claimed, found);
  faults.push_back(fmt::format("simulated.step_time_s: claims {}; the simulation takes {}", claim, fact));
}

/// Recomputes how far the predicted step may be off.
void check_interval(const Plan& plan, const Inputs& inputs, Faults& faults)
{
  if (!plan.predicted || !plan.predicted->interval || !faults.empty()) return;
  const Seconds step = plan.predicted->step_time;
  const auto basis = basis_of_step(inputs, plan, step);
  if (!basis) {
    faults.emplace_back(
        "predicted.step_interval_s: claims an interval; nothing is known of how far this step may be off");
    return;
  }
  constexpr double tolerance = 1e-6;
  const StepInterval& claimed = *plan.predicted->interval;
  const StepInterval found = compute::interval_of(*basis, step);
  const auto compare_ends = [&](Seconds claim, Seconds fact) {
    if (std::abs((claim - fact).value) <= tolerance * fact.value) return;
    const auto [one, other] = distinct_texts(claim.value, fact.value);
    faults.push_back(fmt::format("predicted.step_interval_s: claims {}; it is {}", one, other));
  };
  compare_ends(claimed.low, found.low);
  compare_ends(claimed.high, found.high);
  if (claimed.because != found.because) {
    faults.push_back(fmt::format("predicted.interval_because: claims {}; it is {}",
                                 shown(fmt::format("{}", fmt::join(claimed.because, "; "))),
                                 shown(fmt::format("{}", fmt::join(found.because, "; ")))));
  }
}

/// Whether the file proves its claims; no certificate proves that there is no placement.
bool is_proven(const Plan& plan, const Faults& faults)
{
  return faults.empty() && !plan.stages.empty();
}

/// (objective - proven bound) / objective.
double proven_gap(const Plan& plan, Seconds proven)
{
  if (!plan.objective || plan.objective->value <= 0) return 0;
  return std::max(0.0, (*plan.objective - proven) / *plan.objective);
}

std::string bound_of(const Plan& plan, const CertificateCheck& check)
{
  return fmt::format("no {} below {:.6g} s: certificate {} proves {:.6g} s", scope_of_bound(plan),
                     plan.objective_bound.value().value, name_of(plan.certificate.kind), check.proven.value);
}

std::string verification_json(const Plan& plan, const VerifyOptions& options, const CertificateCheck& check,
                              const Faults& faults, std::size_t layers)
{
  const bool holds = faults.empty();
  const auto number = [holds](bool is_known, double value) { return holds && is_known ? Json(value) : Json(nullptr); };
  const Seconds none(0);
  const Json answer = {
      {"schema", "isobar-verification/1"},
      {"plan", options.plan},
      {"holds", holds},
      {"proven", is_proven(plan, faults)},
      {"outcome", name_of(plan.outcome)},
      {"certificate", name_of(plan.certificate.kind)},
      {"objective_s", number(plan.objective.has_value(), plan.objective.value_or(none).value)},
      {"objective_bound_s", number(plan.objective_bound.has_value(), plan.objective_bound.value_or(none).value)},
      {"proven_bound_s", number(plan.objective_bound && std::isfinite(check.proven.value), check.proven.value)},
      {"gap_fraction", number(plan.objective.has_value(), proven_gap(plan, check.proven))},
      {"layers", layers},
      {"devices", devices_of(plan).size()},
      {"faults", faults}};
  return json_lines(answer);
}

std::string verification_text(const Plan& plan, const VerifyOptions& options, const CertificateCheck& check,
                              const Faults& faults, std::size_t layers)
{
  const std::string plan_file = on_one_line(options.plan);
  std::string text;
  for (const auto& fault : faults) text += fmt::format("{}: {}\n", plan_file, fault);
  if (!faults.empty()) return text;
  if (plan.stages.empty()) {
    text = fmt::format("{}: {}: {}\n", plan_file, name_of(plan.outcome), reason_of(plan));
    text += plan.outcome == Outcome::Infeasible
                ? "nothing in it is false, but it does not prove that there is no placement\n"
                : "nothing in it is false, and it has no placement\n";
    return plan.objective_bound ? text + bound_of(plan, check) + "\n" : text;
  }
  return fmt::format(
      "{}: every claim holds{}\nobjective {:.6g} s ({}, communication {}), {} on {}\n{}, gap {:.2f} %\n", plan_file,
      plan.latency_occupies_lanes() ? " by the rules of older versions, where latencies occupy lanes" : "",
      plan.objective.value().value, name_of(plan.goal.objective), name_of(plan.goal.communication),
      counted(layers, "layer"), counted(devices_of(plan).size(), "device"), bound_of(plan, check),
      100 * proven_gap(plan, check.proven));
}

/// Recomputes every claim of the workers' plans, with their certificates, and of their rounds.
ExitCode verify_rounds(const VerifyOptions& options)
{
  const OuterPlan plan = read_outer_plan(options.plan);
  const Inputs inputs = load_rounds(options.inputs, plan, options.plan);
  Faults faults;
  for (std::size_t k = 0; k < plan.workers.size(); ++k) {
    const Plan& own = plan.workers[k].plan;
    Faults of_worker;
    compare("platform", own.platform, inputs.platform_fingerprint, of_worker);
    compare("workload", own.workload, inputs.workload_fingerprint, of_worker);
    const auto check =
        check_certificate(own, as_planned(inputs, own), cluster_of_worker(own, inputs.platform.cluster()));
    of_worker.insert(of_worker.end(), check.faults.begin(), check.faults.end());
    for (const auto& fault : of_worker) faults.push_back(fmt::format("workers[{}].plan.{}", k, fault));
  }
  for (auto& fault : faults_of_rounds(plan, inputs)) faults.push_back(std::move(fault));
  if (options.json) {
    const Json answer = {{"schema", "isobar-verification/1"},
                         {"rounds", options.plan},
                         {"holds", faults.empty()},
                         {"round_time_s", plan.predicted.round_time.value},
                         {"round_bound_s", plan.round_bound.value},
                         {"workers", plan.workers.size()},
                         {"faults", faults}};
    print(json_lines(answer));
  } else if (faults.empty()) {
    print(fmt::format("{}: every claim holds\nround {:.6g} s of {} workers, none below {:.6g} s\n",
                      on_one_line(options.plan), plan.predicted.round_time.value, plan.workers.size(),
                      plan.round_bound.value));
  } else {
    std::string text;
    for (const auto& fault : faults) text += fmt::format("{}: {}\n", on_one_line(options.plan), fault);
    print(text);
  }
  return faults.empty() ? ExitCode::Done : ExitCode::CheckFailed;
}

ExitCode verify(const VerifyOptions& options)
{
  if (is_outer_plan(options.plan)) return verify_rounds(options);
  const Plan plan = schedules::read_scheduled_plan(options.plan);
  const Inputs inputs = load(options.inputs, plan, options.plan);
  const Cluster& cluster = inputs.platform.cluster();
  Faults faults;
  compare("platform", plan.platform, inputs.platform_fingerprint, faults);
  compare("workload", plan.workload, inputs.workload_fingerprint, faults);
  CertificateCheck check;
  if (auto other = other_profile(plan, inputs)) {
    faults.push_back(std::move(*other));
  } else {
    check_stamp(plan, inputs, faults);
    for (auto& fault : all_faults_of(plan, inputs.workload, cluster)) faults.push_back(std::move(fault));
    check = check_certificate(plan, inputs.workload, cluster);
    faults.insert(faults.end(), check.faults.begin(), check.faults.end());
    check_interval(plan, inputs, faults);
    check_simulated(plan, inputs, faults);
  }
  const auto answer = options.json ? verification_json : verification_text;
  print(answer(plan, options, check, faults, inputs.workload.layers.size()));
  return faults.empty() ? ExitCode::Done : ExitCode::CheckFailed;
}

/// Recomputes the times, the bound and the certificates of groups.
ExitCode verify_groups(const std::string& file, bool as_json)
{
  if (read_file(file).find("\"isobar-plan/") != std::string::npos) {
    throw InputError(file, "is a plan; verify it with its platform and workload: isobar verify PLATFORM WORKLOAD PLAN");
  }
  const Grouping grouping = read_grouping(file);
  const Faults faults = faults_of(grouping);
  if (as_json) {
    const nlohmann::ordered_json answer = {{"schema", "isobar-verification/1"},
                                           {"groups", file},
                                           {"holds", faults.empty()},
                                           {"total_s", grouping.total.value},
                                           {"bound_s", grouping.bound.value},
                                           {"certificates", grouping.proofs.size()},
                                           {"faults", faults}};
    print(json_lines(answer));
  } else {
    std::string text;
    for (const auto& fault : faults) text += fmt::format("{}: {}\n", on_one_line(file), fault);
    if (faults.empty()) {
      text = fmt::format("{}: every claim holds\n{} of {}, {:.6g} s, no {} below {:.6g} s ({})\n", on_one_line(file),
                         counted(grouping.groups.size(), "group"), counted(grouping.jobs.size(), "job"),
                         grouping.total.value,
                         grouping.at_once ? "sum with this longest round" : std::string(name_of(grouping.size)),
                         grouping.bound.value, grouping.proofs.empty() ? "sums by resource" : "certificate");
    }
    print(text);
  }
  return faults.empty() ? ExitCode::Done : ExitCode::CheckFailed;
}

}  // namespace

void add_verify_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("verify", "recompute every claim of a plan, and its bound from the certificate");
  auto options = std::make_shared<VerifyOptions>();
  options->inputs.add_to(*command);
  command->get_option("WORKLOAD")->required(false);
  add_file(*command, "PLAN", options->plan, "plan file (JSON)");
  command->option_defaults()->group("Output");
  command->add_flag("--json", options->json, "print the findings as JSON");
  command->footer(verify_footer);
  command->callback([options, &action] {
    if (options->inputs.workload.empty()) {
      action = [options] { return verify_groups(options->inputs.platform, options->json); };
      return;
    }
    if (options->plan.empty()) throw CLI::RequiredError("PLAN");
    action = [options] { return verify(*options); };
  });
}

}  // namespace isobar::cli

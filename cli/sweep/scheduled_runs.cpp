#include "cli/sweep/scheduled_runs.hpp"

#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

/// For the policies of the sweep that share devices.
constexpr std::array<const char*, 3> sharing_options = {"order", "round_form", "largest_group"};

/// "--step-factor: …" as a fault of the key step_factor.
InputError as_key(const InputError& fault)
{
  std::string text = fault.what();
  const auto colon = std::min(text.find(": "), text.size());
  std::replace(text.begin() + 2, text.begin() + static_cast<std::ptrdiff_t>(colon), '-', '_');
  return InputError(text);
}

}  // namespace

ScheduledRuns::ScheduledRuns(results::Sweep read) : SweepRuns(std::move(read))
{
  FaultsOfRuns faults(sweep().file());
  for (std::size_t run = 0; run < sweep().runs(); ++run) {
    throw_if_interrupted();
    check_platform(run, faults);
    read_trace(run, faults);
    check_rules(run, faults);
  }
  require_sharing(faults);
  faults.throw_if_any();
  hash_platform_files();
}

ScheduledRuns::TraceSource ScheduledRuns::trace_source(std::size_t run) const
{
  return {sweep().text(run, "trace"), sweep().text(run, "format"), sweep().text(run, "header"), sweep().seed(run)};
}

void ScheduledRuns::read_trace(std::size_t run, FaultsOfRuns& faults)
{
  const TraceSource source = trace_source(run);
  if (traces_.contains(source)) return;
  JobTrace& trace = traces_[source];
  try {
    trace = read_job_trace(source.file, {source.format, source.header, source.seed});
    for (const auto& file : trace.files) {
      if (!hashes_.contains(file)) hashes_[file] = fingerprint(read_file(file));
    }
  } catch (const InputError& fault) {
    if (std::string(fault.what()).starts_with("--")) {
      faults.add(sweep(), run, "", "trace", fault);
    } else {
      faults.add(sweep().value(run, "trace")->line, fault);
    }
  }
}

/// The options of a run, without those that its scheduling policy does not take.
ClusterOptions ScheduledRuns::options_of(std::size_t run) const
{
  ClusterOptions options;
  options.trace = sweep().text(run, "trace");
  options.platform = sweep().text(run, "platform");
  options.reading.seed = sweep().seed(run);
  options.at_once = sweep().text(run, "at_once") == "true";
  if (const auto* load = sweep().value(run, "load")) options.load = std::stod(load->scalar);
  options.policy = sweep().text(run, "policy");
  if (const auto* semantics = sweep().value(run, "semantics")) options.semantics = semantics->scalar;
  options.round = sweep().text(run, "round");
  if (const auto* factor = sweep().value(run, "step_factor")) options.step_factor = std::stod(factor->scalar);
  options.charges_moves = sweep().text(run, "charge_moves") == "true";
  const auto& policies = allocators::policy_names();
  const auto policy = std::find(policies.begin(), policies.end(), options.policy);
  if (policy == policies.end() || !shares_devices(static_cast<allocators::Policy>(policy - policies.begin()))) {
    return options;
  }
  options.order = sweep().text(run, "order");
  options.form = sweep().text(run, "round_form");
  if (const auto* largest = sweep().value(run, "largest_group")) options.largest_group = std::stoull(largest->scalar);
  return options;
}

void ScheduledRuns::check_rules(std::size_t run, FaultsOfRuns& faults) const
{
  try {
    rules_from(options_of(run));
  } catch (const InputError& fault) {
    faults.add(sweep(), run, "", "policy", as_key(fault));
  }
}

/// Refuses options of groups in a sweep without groups.
void ScheduledRuns::require_sharing(FaultsOfRuns& faults) const
{
  for (const auto& parameter : sweep().parameters()) {
    if (parameter.name != "policy") continue;
    for (const auto& policy : parameter.values) {
      if (policy.scalar == "muri" || policy.scalar == "crossover") return;
    }
  }
  for (const auto* option : sharing_options) {
    const auto* value = sweep().value(0, option);
    if (value != nullptr) faults.add(value->line, option, "goes with muri or crossover, and the sweep has neither");
  }
}

std::vector<std::string> ScheduledRuns::inputs() const
{
  std::vector<std::string> files = SweepRuns::inputs();
  for (const auto& [file, hash] : hashes_) files.push_back(file);
  return files;
}

std::string ScheduledRuns::definition(std::size_t run) const
{
  const ClusterOptions options = options_of(run);
  const allocators::ScheduleRules rules = rules_from(options);
  const JobTrace& trace = traces_.at(trace_source(run));
  Json definition;
  for (const auto& [key, text] : common_definition(run)) definition[key] = text;
  definition["trace"] = Json::array();
  for (const auto& file : trace.files) definition["trace"].push_back(hashes_.at(file));
  definition["format"] = trace.format;
  definition["seed"] = options.reading.seed;
  definition["load"] = options.at_once ? Json(nullptr) : Json(options.load.value_or(1));
  definition["policy"] = options.policy;
  definition["semantics"] = options.semantics;
  definition["round_s"] = rules.round ? Json(rules.round->value) : Json(nullptr);
  definition["step_factor"] = rules.step_factor;
  definition["charge_moves"] = rules.charges_moves;
  if (shares_devices(rules.policy)) {
    definition["order"] = rules.groups_by_service ? "tiresias" : "srsf";
    definition["round_form"] = rules.form == allocators::RoundForm::Slots ? "slots" : "overlap";
    definition["largest_group"] = rules.largest_group;
  }
  return json_line(definition);
}

std::vector<results::SweepResult> ScheduledRuns::results_of(std::map<std::size_t, results::SweepRow> rows) const
{
  std::vector<results::SweepResult> found;
  for (auto& [run, row] : rows) {
    const ClusterOptions options = options_of(run);
    found.push_back({run,
                     {{"platform", results::text_node(options.platform)},
                      {"trace", results::text_node(options.trace)},
                      {"policy", results::text_node(options.policy)},
                      {"semantics", results::text_node(options.semantics)},
                      {"seed", results::count_node(options.reading.seed)}},
                     std::move(row.outcome),
                     std::move(row.numbers),
                     std::move(row.reason)});
  }
  return found;
}

results::SweepRow ScheduledRuns::row_of(std::size_t run, const std::optional<sim::Platform>& shared) const
{
  const ClusterOptions options = options_of(run);
  const auto platform = shared ? *shared : load_platform_of(platform_source(run));
  const auto scheduled = schedule_trace(options, traces_.at(trace_source(run)), platform);
  return {definition(run), results::scheduled_outcome, numbers_of(options, scheduled), ""};
}

}  // namespace isobar::cli

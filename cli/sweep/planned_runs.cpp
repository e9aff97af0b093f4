#include "cli/sweep/planned_runs.hpp"

#include "allocators/registry.hpp"
#include "cli/goal_options.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/rows.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/pcg64.hpp"
#include "core/text/json_text.hpp"
#include "results/sweep/planned_rows.hpp"
#include "schedules/orders/warm_up.hpp"

#ifdef ISOBAR_HAS_CBC
#include "allocators/sky/milp.hpp"
#endif

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace isobar::cli {

namespace {

using results::ComparisonRow;
using results::SweepRow;

/// Multiplies the speed of each device by a log-normal factor of median 1, drawn by the Box-Muller transform.
void add_noise(sim::Platform& platform, double sigma, std::uint64_t seed)
{
  Pcg64 stream(seed);
  std::vector<std::string> names;
  for (const auto& device : platform.cluster().devices) names.push_back(device.name);
  for (const auto& name : names) {
    const double radius = std::sqrt(-2 * std::log(1 - stream.uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * stream.uniform());
    platform.scale(sim::Property::Speed, std::exp(sigma * normal), name);
  }
}

constexpr std::array<std::pair<std::string_view, sim::Property>, 4> scales = {
    {{"scale.bandwidth", sim::Property::Bandwidth},
     {"scale.latency", sim::Property::Latency},
     {"scale.speed", sim::Property::Speed},
     {"scale.memory", sim::Property::Memory}}};

double number_of(const DocumentNode& value)
{
  return std::stod(value.scalar);
}

void change(sim::Platform& platform, const results::Sweep& sweep, std::size_t run)
{
  for (const auto& [parameter, property] : scales) {
    if (const auto* factor = sweep.value(run, std::string(parameter))) platform.scale(property, number_of(*factor));
  }
  const auto* noise = sweep.value(run, "noise");
  if (noise != nullptr && number_of(*noise) > 0) add_noise(platform, number_of(*noise), sweep.seed(run));
}

/// What the allocator of a run plans by; none where it plans by the inputs.
std::optional<Belief> belief_of(const results::Sweep& sweep, std::size_t run)
{
  if (sweep.members(run, "believed").empty()) return std::nullopt;
  const auto number = [&](const char* parameter, double otherwise) {
    const auto* value = sweep.value(run, parameter);
    return value == nullptr ? otherwise : number_of(*value);
  };
  return Belief{{.speed = number("believed.speed", 1),
                 .bandwidth = number("believed.bandwidth", 1),
                 .latency = number("believed.latency", 1)},
                number("believed.layer_noise", 0)};
}

GoalOptions options_of(const results::Sweep& sweep, std::size_t run)
{
  GoalOptions options;
  const auto given = [&](const char* parameter) {
    const auto* value = sweep.value(run, parameter);
    return value == nullptr ? std::nullopt : std::optional(value->scalar);
  };
  options.communication = given("communication");
  if (const auto schedule = given("schedule")) options.schedules = {*schedule};
  if (const auto microbatches = given("microbatches")) options.microbatches = std::stoull(*microbatches);
  options.recompute = given("recompute");
  if (const auto window = given("window")) options.window = std::stoull(*window);
  options.offload = given("offload");
  options.shares = given("shares");
  options.budget = sweep.budget(run);
  options.seed = sweep.seed(run);
  return options;
}

Goal goal_of(const results::Sweep& sweep, std::size_t run)
{
  const std::string objective = sweep.text(run, "objective");
  return options_of(sweep, run).goal(objective.empty() ? "step" : objective, sweep.text(run, "allocator"));
}

/// Checks a warm-up as far as that needs no placement.
void require_warm_up(const ScheduleChoice& choice, std::uint64_t microbatches)
{
  const auto given = choice.numbers.find("warm_up");
  if (given == choice.numbers.end() || given->second.empty()) return;  // or left to the allocator
  schedules::given_warm_up({std::vector<std::string>(given->second.size()), {}, microbatches}, choice);
}

}  // namespace

PlannedRuns::PlannedRuns(results::Sweep read) : SweepRuns(std::move(read))
{
  FaultsOfRuns faults(sweep().file());
  for (std::size_t run = 0; run < sweep().runs(); ++run) {
    throw_if_interrupted();
    check_platform(run, faults);
    const WorkloadSource workload = workload_source(run);
    if (!workloads_.contains(workload)) read_workload(run, workload, faults);
    check_goal(run, faults);
  }
  faults.throw_if_any();
  hash_platform_files();
}

PlannedRuns::WorkloadSource PlannedRuns::workload_source(std::size_t run) const
{
  return {sweep().text(run, "workload"), texts_of(sweep().members(run, "workload")), sweep().text(run, "profile"),
          sweep().text(run, "recompute")};
}

/// Checks that the values of the goal go together and with the allocator, and the numbers of its schedule.
void PlannedRuns::check_goal(std::size_t run, FaultsOfRuns& faults) const
{
  try {
    const Goal goal = goal_of(sweep(), run);
    require_warm_up(goal.schedule, goal.microbatches);
    allocators::require_schedule(sweep().text(run, "allocator"), goal);
    options_of(sweep(), run).check_search(allocators());
    if (belief_of(sweep(), run) && goal.objective != Objective::Step) {
      throw InputError("objective", fmt::format("{} with `believed`, whose plans get the claims of objective step; "
                                                "write step, or leave one of them out",
                                                name_of(goal.objective)));
    }
  } catch (const InputError& fault) {
    faults.add(sweep(), run, "", "allocator", fault);
  }
}

const DeviceProfile& PlannedRuns::profile_of(const std::string& file)
{
  const auto known = profiles_.find(file);
  return known != profiles_.end() ? known->second : profiles_.emplace(file, read_profile(file)).first->second;
}

void PlannedRuns::read_workload(std::size_t run, const WorkloadSource& source, FaultsOfRuns& faults)
{
  const int line = sweep().value(run, "workload")->line;
  try {
    const std::string text = read_file(source.file);
    workload_hashes_[source.file] = fingerprint(text);
    Workload& workload = workloads_[source];
    workload =
        workload_from_text(text, source.file, {sweep().file(), "workload.", line, sweep().members(run, "workload")});
    if (!source.profile.empty()) apply_profile(profile_of(source.profile), source.profile, workload);
    if (!source.recompute.empty()) {
      recompute_layers(workload, {source.recompute, fmt::format("{}:{}: recompute", sweep().file(),
                                                                sweep().value(run, "recompute")->line)});
    }
  } catch (const InputError& fault) {
    faults.add(line, fault);
  }
}

std::vector<std::string> PlannedRuns::inputs() const
{
  std::vector<std::string> files = SweepRuns::inputs();
  for (const auto& [file, hash] : workload_hashes_) files.push_back(file);
  for (const auto& [file, profile] : profiles_) files.push_back(file);
  for (const auto& allocator : allocators()) files.push_back(program_of(allocator));
  return files;
}

std::vector<std::string> PlannedRuns::allocators() const
{
  std::vector<std::string> names;
  for (const auto& parameter : sweep().parameters()) {
    if (parameter.name != "allocator") continue;
    for (const auto& allocator : parameter.values) names.push_back(allocator.scalar);
  }
  return names;
}

std::string PlannedRuns::definition(std::size_t run) const
{
  using Json = nlohmann::ordered_json;
  const WorkloadSource workload = workload_source(run);
  const ComparisonRow row = empty_row(run);
  Json definition;
  for (const auto& [key, text] : common_definition(run)) definition[key] = text;
  for (const auto& [parameter, property] : scales) {
    if (const auto* factor = sweep().value(run, std::string(parameter)))
      definition[std::string(parameter)] = factor->scalar;
  }
  if (const auto* noise = sweep().value(run, "noise")) definition["noise"] = noise->scalar;
  if (const auto believed = texts_of(sweep().members(run, "believed")); !believed.empty()) {
    definition["believed"] = believed;
  }
  definition["workload"] = workload_hashes_.at(workload.file);
  if (!workload.overrides.empty()) definition["workload_with"] = workload.overrides;
  if (!workload.profile.empty()) definition["profile"] = fingerprint(read_file(workload.profile));
  if (row.recompute != "none") definition["recompute"] = row.recompute;
  definition["allocator"] = row.allocator;
#ifdef ISOBAR_HAS_CBC
  if (row.allocator == allocators::sky_optimal_allocator.name) definition["cbc"] = allocators::cbc_version();
#endif
  const std::string program = program_of(row.allocator);
  if (is_file(program)) definition["program"] = fingerprint(read_file(program));
  definition["objective"] = name_of(row.goal.objective);
  definition["communication"] = name_of(row.goal.communication);
  definition["schedule"] = text_of(row.goal.schedule);
  definition["microbatches"] = row.goal.microbatches;
  definition["seed"] = row.seed;
  const auto limits = options_of(sweep(), run).limits(row.allocator);
  if (limits.budget) definition["budget"] = *limits.budget;
  if (limits.window) definition["window"] = *limits.window;
  if (limits.offload) definition["offload"] = "auto";
  if (limits.shares != allocators::ShareRule::Best) definition["shares"] = name_of(limits.shares);
  return json_line(definition);
}

std::vector<results::SweepResult> PlannedRuns::results_of(std::map<std::size_t, SweepRow> rows) const
{
  std::vector<results::PlannedRun> found;
  for (const auto& [run, row] : rows) {
    found.push_back({run, empty_row(run)});
    fill_from(row, found.back().row);
  }
  return results::results_of(sweep(), found);
}

ComparisonRow PlannedRuns::empty_row(std::size_t run) const
{
  InputOptions files;
  files.platform = sweep().text(run, "platform");
  files.workload = sweep().text(run, "workload");
  const std::string allocator = sweep().text(run, "allocator");
  return pending_row(files, allocator, goal_of(sweep(), run), options_of(sweep(), run).recompute_for(allocator).layers,
                     sweep().seed(run));
}

SweepRow PlannedRuns::row_of(std::size_t run, const std::optional<sim::Platform>& shared) const
{
  const PlatformSource source = platform_source(run);
  Inputs inputs{shared ? *shared : load_platform_of(source),
                workloads_.at(workload_source(run)),
                {source.name, platform_hash(source)},
                {sweep().text(run, "workload"), workload_hashes_.at(sweep().text(run, "workload"))},
                {},
                {}};
  const std::string profile = sweep().text(run, "profile");
  if (!profile.empty()) take_speeds(profiles_.at(profile), profile, inputs);
  price(inputs);
  change(inputs.platform, sweep(), run);
  ComparisonRow row = empty_row(run);
  const GoalOptions options = options_of(sweep(), run);
  if (!options.recompute) recompute_layers(inputs.workload, options.recompute_for(row.allocator));
  const auto limits = options.limits(row.allocator);
  const auto belief = belief_of(sweep(), run);
  fill_row(row, belief ? plan_by_belief_and_simulate(inputs, row.allocator, row.goal, limits, *belief, row.seed)
                       : plan_and_simulate(inputs, row.allocator, row.goal, limits));
  return results::stored_row(definition(run), row);
}

}  // namespace isobar::cli

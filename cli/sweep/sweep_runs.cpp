#include "cli/sweep/sweep_runs.hpp"

#include "allocators/registry.hpp"
#include "cli/generators.hpp"
#include "cli/goal_options.hpp"
#include "cli/planning.hpp"
#include "cli/platform_files.hpp"
#include "cli/rows.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/pcg64.hpp"
#include "core/base/progress_line.hpp"
#include "schedules/orders/warm_up.hpp"

#ifdef ISOBAR_HAS_CBC
#include "allocators/sky/milp.hpp"
#endif

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <set>
#include <thread>
#include <utility>

namespace isobar::cli {

namespace {

using results::ComparisonRow;
using results::SweepRow;

/// Time limit of loading one platform for its hash.
constexpr Seconds longest_load(600);

std::map<std::string, std::string> texts_of(const std::vector<DocumentNode::Member>& members)
{
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : members) texts[key] = value.scalar;
  return texts;
}

bool is_file(const std::string& name)
{
  std::error_code unknown;
  return std::filesystem::is_regular_file(name, unknown);
}

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

results::Sweep read_sweep(const std::string& file)
{
  results::SweepVocabulary vocabulary{generator_names(), options_of_generator, allocators::require_allocator,
                                      [](const std::string& schedule) { schedule_of(schedule); }};
  return results::Sweep::from_text(read_file(file), file, vocabulary);
}

}  // namespace

/// The faults of many runs, each distinct line once.
class FaultsOfRuns {
 public:
  explicit FaultsOfRuns(const std::string& file) : faults_(file) {}

  /// Adds a fault of this file, in the value of `key`.
  void add(int line, const std::string& key, const std::string& what)
  {
    if (seen_.insert(fmt::format("{}:{}: {}", line, key, what)).second) faults_.add(line, key, what);
  }
  /// Adds a fault "option: what" of the values of a run: in the value of the parameter `group` + option, or of
  /// `otherwise` where the file does not set that.
  void add(const results::Sweep& sweep, std::size_t run, const std::string& group, const std::string& otherwise,
           const InputError& fault)
  {
    const std::string text = fault.what();
    const auto colon = std::min(text.find(": "), text.size());
    std::string option = text.substr(0, colon);
    option.erase(0, option.find_first_not_of('-'));
    const auto* value = sweep.value(run, group + option);
    if (value == nullptr) value = sweep.value(run, otherwise);
    add(value->line, group + option, text.substr(std::min(colon + 2, text.size())));
  }
  /// Adds a fault of a file that `line` names.
  void add(int line, const InputError& fault)
  {
    const std::string text = fault.what();
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string one = text.substr(begin, end - begin);
      if (seen_.insert(one).second) faults_.add(line, InputError(one));
      begin = end + 1;
    }
  }
  void throw_if_any() const { faults_.throw_if_any(); }

 private:
  FaultList faults_;
  std::set<std::string> seen_;
};

SweepRuns::SweepRuns(const std::string& file) : sweep_(read_sweep(file))
{
  FaultsOfRuns faults(file);
  for (std::size_t run = 0; run < sweep_.runs(); ++run) {
    throw_if_interrupted();
    const PlatformSource platform = platform_source(run);
    if (!platform_hashes_.contains(platform)) check_platform(run, platform, faults);
    const WorkloadSource workload = workload_source(run);
    if (!workloads_.contains(workload)) read_workload(run, workload, faults);
    check_goal(run, faults);
  }
  faults.throw_if_any();
  if (!sweep_.generates_platforms()) hash_platform_files();
}

SweepRuns::PlatformSource SweepRuns::platform_source(std::size_t run) const
{
  PlatformSource source;
  source.name = sweep_.text(run, "platform");
  if (!sweep_.generates_platforms()) {
    source.devices = sweep_.text(run, "platform.devices");
    return source;
  }
  source.options = texts_of(sweep_.members(run, "platform"));
  const auto known = options_of_generator(source.name);
  const bool draws = std::find(known.begin(), known.end(), "seed") != known.end();
  if (draws) source.options.try_emplace("seed", std::to_string(sweep_.seed(run)));
  return source;
}

SweepRuns::WorkloadSource SweepRuns::workload_source(std::size_t run) const
{
  return {sweep_.text(run, "workload"), texts_of(sweep_.members(run, "workload")), sweep_.text(run, "profile"),
          sweep_.text(run, "recompute")};
}

/// Makes a generated platform once, so that a wrong option is reported before anything runs; checks that a file exists.
void SweepRuns::check_platform(std::size_t run, const PlatformSource& source, FaultsOfRuns& faults)
{
  std::string& hash = platform_hashes_[source];
  if (sweep_.generates_platforms()) {
    try {
      hash = fingerprint(generate_platform(source.name, source.options));
    } catch (const InputError& fault) {
      faults.add(sweep_, run, "platform.", "platform", fault);
    }
    return;
  }
  for (const auto* parameter : {"platform", "platform.devices"}) {
    const auto* file = sweep_.value(run, parameter);
    if (file == nullptr || is_file(file->scalar)) continue;
    faults.add(file->line, parameter,
               in_quotes(file->scalar) + ": no such file; names are read from the working folder");
  }
}

/// Checks that the values of the goal go together, and the numbers of its schedule.
void SweepRuns::check_goal(std::size_t run, FaultsOfRuns& faults) const
{
  try {
    const Goal goal = goal_of(sweep_, run);
    require_warm_up(goal.schedule, goal.microbatches);
    options_of(sweep_, run).check_search(allocators());
    if (belief_of(sweep_, run) && goal.objective != Objective::Step) {
      throw InputError("objective", fmt::format("{} with `believed`, whose plans get the claims of objective step; "
                                                "write step, or leave one of them out",
                                                name_of(goal.objective)));
    }
  } catch (const InputError& fault) {
    faults.add(sweep_, run, "", "allocator", fault);
  }
}

const DeviceProfile& SweepRuns::profile_of(const std::string& file)
{
  const auto known = profiles_.find(file);
  return known != profiles_.end() ? known->second : profiles_.emplace(file, read_profile(file)).first->second;
}

void SweepRuns::read_workload(std::size_t run, const WorkloadSource& source, FaultsOfRuns& faults)
{
  const int line = sweep_.value(run, "workload")->line;
  try {
    const std::string text = read_file(source.file);
    workload_hashes_[source.file] = fingerprint(text);
    Workload& workload = workloads_[source];
    workload =
        workload_from_text(text, source.file, {sweep_.file(), "workload.", line, sweep_.members(run, "workload")});
    if (!source.profile.empty()) apply_profile(profile_of(source.profile), source.profile, workload);
    if (!source.recompute.empty()) {
      recompute_layers(workload, {source.recompute, fmt::format("{}:{}: recompute", sweep_.file(),
                                                                sweep_.value(run, "recompute")->line)});
    }
  } catch (const InputError& fault) {
    faults.add(line, fault);
  }
}

/// Loads each platform in a child process, since a process holds only one. A platform that SimGrid refuses gets the
/// hash of its text.
void SweepRuns::hash_platform_files()
{
  std::vector<std::function<std::string()>> work;
  for (const auto& entry : platform_hashes_) {
    const PlatformSource& source = entry.first;
    work.emplace_back([source] { return platform_files_json(source.name, source.devices); });
  }
  const auto answers = run_in_children(work, std::thread::hardware_concurrency(), longest_load);
  auto answer = answers.begin();
  for (auto& [source, hash] : platform_hashes_) {
    PlatformFiles found{"refused " + fingerprint(read_file(source.name)), {source.name, source.devices}};
    if (!answer->failure) found = platform_files_from(answer->output);
    hash = std::move(found.hash);
    platform_files_.insert(platform_files_.end(), found.files.begin(), found.files.end());
    ++answer;
  }
}

std::vector<std::string> SweepRuns::inputs() const
{
  std::vector<std::string> files = {sweep_.file()};
  for (const auto& [file, hash] : workload_hashes_) files.push_back(file);
  for (const auto& [file, profile] : profiles_) files.push_back(file);
  files.insert(files.end(), platform_files_.begin(), platform_files_.end());
  for (const auto& allocator : allocators()) files.push_back(program_of(allocator));
  return files;
}

std::vector<std::string> SweepRuns::allocators() const
{
  std::vector<std::string> names;
  for (const auto& parameter : sweep_.parameters()) {
    if (parameter.name != "allocator") continue;
    for (const auto& allocator : parameter.values) names.push_back(allocator.scalar);
  }
  return names;
}

std::string SweepRuns::definition(std::size_t run) const
{
  using Json = nlohmann::ordered_json;
  const WorkloadSource workload = workload_source(run);
  const ComparisonRow row = empty_row(run);
  Json definition = {{"isobar", ISOBAR_VERSION},
                     {"simgrid", sim::simgrid_version()},
                     {"platform", platform_hashes_.at(platform_source(run))}};
  for (const auto& [parameter, property] : scales) {
    if (const auto* factor = sweep_.value(run, std::string(parameter)))
      definition[std::string(parameter)] = factor->scalar;
  }
  if (const auto* noise = sweep_.value(run, "noise")) definition["noise"] = noise->scalar;
  if (const auto believed = texts_of(sweep_.members(run, "believed")); !believed.empty()) {
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
  const auto limits = options_of(sweep_, run).limits(row.allocator);
  if (limits.budget) definition["budget"] = *limits.budget;
  if (limits.window) definition["window"] = *limits.window;
  if (limits.offload) definition["offload"] = "auto";
  if (limits.shares != allocators::ShareRule::Best) definition["shares"] = name_of(limits.shares);
  return definition.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::size_t> SweepRuns::missing_in(const results::SweepStore& store, bool failed) const
{
  std::vector<std::size_t> missing;
  for (std::size_t run = 0; run < sweep_.runs(); ++run) {
    throw_if_interrupted();
    const auto row = store.row(definition(run));
    if (!row || (failed && row->outcome == results::failed_outcome)) missing.push_back(run);
  }
  return missing;
}

std::vector<results::SweepResult> SweepRuns::results_in(const results::SweepStore& store) const
{
  std::vector<results::SweepResult> found;
  for (std::size_t run = 0; run < sweep_.runs(); ++run) {
    throw_if_interrupted();
    auto row = store.row(definition(run));
    if (!row) continue;
    const ComparisonRow key = empty_row(run);
    row->platform = key.platform;
    row->workload = key.workload;
    row->allocator = key.allocator;
    row->goal = key.goal;
    row->recompute = key.recompute;
    row->seed = key.seed;
    found.push_back({run, std::move(*row)});
  }
  return found;
}

ComparisonRow SweepRuns::empty_row(std::size_t run) const
{
  InputOptions files;
  files.platform = sweep_.text(run, "platform");
  files.workload = sweep_.text(run, "workload");
  const std::string allocator = sweep_.text(run, "allocator");
  return pending_row(files, allocator, goal_of(sweep_, run), options_of(sweep_, run).recompute_for(allocator).layers,
                     sweep_.seed(run));
}

sim::Platform SweepRuns::load_platform_of(const PlatformSource& source) const
{
  return sweep_.generates_platforms()
             ? sim::Platform::from_text(generate_platform(source.name, source.options), source.name)
             : load_platform(source.name, source.devices);
}

SweepRow SweepRuns::row_of(std::size_t run, const std::optional<sim::Platform>& shared) const
{
  const PlatformSource source = platform_source(run);
  Inputs inputs{shared ? *shared : load_platform_of(source),
                workloads_.at(workload_source(run)),
                {source.name, platform_hashes_.at(source)},
                {sweep_.text(run, "workload"), workload_hashes_.at(sweep_.text(run, "workload"))},
                {},
                {}};
  const std::string profile = sweep_.text(run, "profile");
  if (!profile.empty()) take_speeds(profiles_.at(profile), profile, inputs);
  change(inputs.platform, sweep_, run);
  ComparisonRow row = empty_row(run);
  const GoalOptions options = options_of(sweep_, run);
  if (!options.recompute) recompute_layers(inputs.workload, options.recompute_for(row.allocator));
  const auto limits = options.limits(row.allocator);
  const auto belief = belief_of(sweep_, run);
  fill_row(row, belief ? plan_by_belief_and_simulate(inputs, row.allocator, row.goal, limits, *belief, row.seed)
                       : plan_and_simulate(inputs, row.allocator, row.goal, limits));
  return {definition(run), std::move(row)};
}

void SweepRuns::make(const std::vector<std::size_t>& runs, std::size_t jobs, Seconds row_time_limit,
                     const OnRow& on_row) const
{
  std::set<PlatformSource> sources;
  for (const auto run : runs) sources.insert(platform_source(run));
  std::optional<sim::Platform> shared;
  try {
    if (sources.size() == 1) shared = load_platform_of(*sources.begin());
  } catch (const InputError&) {
    // Each run reports it.
  }
  std::vector<std::function<std::string()>> work;
  for (const auto run : runs) work.emplace_back([&, run] { return sweep_row_to_json(row_of(run, shared)); });
  ProgressLine progress("sweep", runs.size());
  std::size_t ended = 0;
  run_in_children(work, jobs, {row_time_limit, "--row-time-limit"}, [&](std::size_t index, const ChildResult& result) {
    if (!result.failure) {
      on_row(results::sweep_row_from_json(result.output, "a child process"));
    } else {
      SweepRow failed{definition(runs[index]), empty_row(runs[index])};
      failed.row.reason = shown(result.failure->text, 500);
      on_row(failed);
    }
    progress.done(++ended);
  });
}

}  // namespace isobar::cli

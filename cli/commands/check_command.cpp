#include "allocators/registry.hpp"
#include "cli/commands.hpp"
#include "cli/commands/base_build.hpp"
#include "cli/goal_options.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/rows.hpp"
#include "cli/planning/simulated_choice.hpp"
#include "cli/platform_files.hpp"
#include "cli/sweep/sweep_runs.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/text/quantity_text.hpp"
#include "results/gate/baseline.hpp"
#include "results/gate/baseline_meta.hpp"
#include "results/sweep/sweep_table.hpp"
#include "schedules/orders/schedule.hpp"

#ifdef ISOBAR_HAS_CBC
#include "allocators/sky/milp.hpp"
#endif

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <thread>

namespace isobar::cli {

namespace {

constexpr auto check_footer = R"(NAME.meta.json next to NAME.csv defines the rows (docs/quality_gate.md). Begin a
baseline with --init, then --approve it.
Exit codes: 0 every row as approved · 2 not comparable, or a file that cannot be
            read · 5 a change, for better or worse

Example:
  isobar check results/baselines/quality.csv
)";

struct CheckOptions {
  std::string baseline;
  std::string base;
  std::string junit;
  std::string markdown;
  std::string row_time_limit = "10min";
  bool approve = false;
  bool init = false;
  std::vector<std::string> platforms;
  std::vector<std::string> workloads;
  std::vector<std::string> allocators = {"even", "chain-dp"};
  std::vector<std::string> objectives = {"step"};
  bool json = false;

  /// NAME.meta.json for NAME.csv.
  std::string meta() const { return std::filesystem::path(baseline).replace_extension(".meta.json").string(); }
};

using results::BaselineCheck;
using results::BaselineMeta;
using results::ComparisonRow;
using results::Provenance;

void require_baseline_name(const CheckOptions& options)
{
  if (options.baseline.ends_with(".csv")) return;
  throw InputError(options.baseline, "a baseline's name ends in .csv; NAME.meta.json defines the rows of NAME.csv");
}

/// @throws InputError with the place `where` for a schedule that is not known or does not go with an objective.
void require_schedule_of(const BaselineMeta& meta, const std::string& where)
{
  try {
    schedules::require_schedule(*meta.schedule);
  } catch (const InputError& fault) {
    throw InputError(where, without_place("schedule", fault));
  }
  if (chain_schedule(*meta.schedule)) return;
  for (const auto objective : meta.objectives) {
    if (!Goal{objective}.is_formula()) continue;
    throw InputError(where, fmt::format("{} does not go with objective {}, a formula for sequential, gpipe and 1f1b",
                                        text_of(*meta.schedule), name_of(objective)));
  }
}

/// The options of a search that every row of a grid has.
GoalOptions goal_options_of(const BaselineMeta& meta)
{
  GoalOptions options;
  options.seed = meta.seed;
  options.window = meta.window;
  options.offload = meta.offload;
  return options;
}

results::BaselineMeta read_meta(const CheckOptions& options)
{
  require_baseline_name(options);
  if (!std::filesystem::exists(options.meta())) {
    throw InputError(options.meta(), "no such file; it defines the rows; isobar check --init makes one");
  }
  BaselineMeta meta = results::baseline_meta_from_json(read_file(options.meta()), options.meta());
  if (!meta.sweep.empty()) return meta;
  for (const auto& allocator : meta.allocators) {
    try {
      allocators::require_allocator(allocator);
    } catch (const InputError& fault) {
      throw InputError(options.meta() + ": grid.allocators", fault.what());
    }
  }
  if (meta.schedule) require_schedule_of(meta, options.meta() + ": grid.schedule");
  using allocators::Allocator;
  const GoalOptions goal = goal_options_of(meta);
  if (goal.window) {
    allocators::require_property(&Allocator::takes_window, options.meta() + ": grid.window", meta.allocators);
  }
  if (goal.offloads()) {
    allocators::require_property(&Allocator::takes_offload, options.meta() + ": grid.offload", meta.allocators);
  }
  return meta;
}

std::vector<ComparisonRow> rows_of(const BaselineMeta& meta)
{
  return meta.rows([goal = goal_options_of(meta)](ComparisonRow& row) {
    row.recompute = goal.recompute_for(row.allocator).layers;
    row.goal = goal.goal(std::string(name_of(row.goal.objective)), row.allocator);
  });
}

/// The files that the rows are made from.
struct GridFiles {
  std::map<std::string, std::string> hashes;  ///< of platforms and workloads, by file
  std::vector<std::string> read;              ///< every file that was read
};

/// Reads each file once, so that its faults are reported before anything is planned. A child process loads each
/// platform, since a process holds only one.
GridFiles files_of(const std::vector<ComparisonRow>& rows, Seconds time_limit)
{
  GridFiles files;
  auto& hashes = files.hashes;
  std::set<std::string> platforms;
  for (const auto& row : rows) {
    platforms.insert(row.platform);
    files.read.push_back(program_of(row.allocator));
    if (hashes.contains(row.workload)) continue;
    const std::string text = read_file(row.workload);
    workload_from_text(text, row.workload);
    hashes[row.workload] = fingerprint(text);
    files.read.push_back(row.workload);
  }
  std::vector<std::function<std::string()>> work;
  for (const auto& platform : platforms) work.emplace_back([platform] { return platform_files_json(platform, ""); });
  const auto results = run_in_children(work, std::thread::hardware_concurrency(), {time_limit, "--row-time-limit"});
  auto result = results.begin();
  for (const auto& platform : platforms) {
    auto found = platform_files_from((result++)->output_or_throw());
    hashes[platform] = std::move(found.hash);
    files.read.insert(files.read.end(), found.files.begin(), found.files.end());
  }
  return files;
}

std::optional<std::string> cbc_version_for(const BaselineMeta& meta)
{
#ifdef ISOBAR_HAS_CBC
  const auto& used = meta.allocators;
  if (std::find(used.begin(), used.end(), allocators::sky_optimal_allocator.name) != used.end()) {
    return allocators::cbc_version();
  }
#else
  static_cast<void>(meta);
#endif
  return std::nullopt;
}

void require_comparable(const CheckOptions& options, const Provenance& approved, const Provenance& now)
{
  auto reasons = results::reasons_not_to_compare(approved, now);
  if (reasons.empty()) return;
  for (auto& reason : reasons) {
    reason = fmt::format(
        "{}: {}, so the rows cannot be compared; use the versions and settings that made them, or make "
        "them again with --approve",
        options.meta(), reason);
  }
  throw InputError(reasons);
}

std::string baseline_text(const CheckOptions& options)
{
  if (!std::filesystem::exists(options.baseline)) {
    throw InputError(options.baseline, "no such file; isobar check --approve makes it");
  }
  return read_file(options.baseline);
}

std::vector<ComparisonRow> baseline_rows(const CheckOptions& options)
{
  if (options.approve && !std::filesystem::exists(options.baseline)) return {};
  return results::baseline_from_csv(baseline_text(options), options.baseline);
}

/// @throws InputError when the base made no row: it is not an isobar program, or does not work here.
void require_some_answer(const std::vector<ComparisonRow>& rows, const std::string& base)
{
  if (!std::all_of(rows.begin(), rows.end(), has_failed)) return;
  throw InputError("--base", fmt::format("{} makes none of the {} rows; its first fault: {}", shown(base), rows.size(),
                                         shown(rows.front().reason, 300)));
}

/// Plans and simulates each row in a child process. Rows of one goal then share its best bound, as in compare.
void make(std::vector<ComparisonRow>& rows, const BaselineMeta& meta, Seconds row_time_limit)
{
  const GoalOptions goal = goal_options_of(meta);
  std::vector<std::function<std::string()>> work;
  for (auto& row : rows) {
    InputOptions files;
    files.platform = row.platform;
    files.workload = row.workload;
    allocators::SearchLimits limits = goal.limits(row.allocator);
    if (const auto budget = meta.budgets.find(row.allocator); budget != meta.budgets.end())
      limits.budget = budget->second;
    if (const auto count = meta.simulate.find(row.allocator); count != meta.simulate.end()) {
      limits.candidates = candidates_from("simulate." + row.allocator, count->second);
    }
    row = pending_row(files, row.allocator, row.goal, row.recompute, row.seed);
    work.emplace_back([files, row, limits] {
      return plan_and_simulate(load(files, {row.recompute}), row.allocator, row.goal, limits);
    });
  }
  make_rows("check", rows, work, row_time_limit);
  share_bounds(rows);
}

/// The limits as they were; a missing or exceeded one is replaced by one with room for other machines and noise.
std::map<std::string, double> limits_to_approve(const BaselineCheck& check, std::map<std::string, double> limits)
{
  constexpr double room = 4;
  for (const auto& time : check.plan_times) {
    if (!time.limit || time.is_over()) limits[time.allocator] = std::ceil(room * std::max(1.0, time.ratio_to_even));
  }
  return limits;
}

/// Writes both files, unless a row failed. `csv`: today's rows.
ExitCode approve(const CheckOptions& options, const BaselineCheck& check, const std::string& csv, BaselineMeta meta,
                 Provenance now, OutputFile& csv_file, OutputFile& meta_file)
{
  const auto failed = std::count_if(check.changes.begin(), check.changes.end(), [](const results::Change& change) {
    return change.kind == results::ChangeKind::Failed;
  });
  if (failed > 0) {
    say(fmt::format("{} failed, and failed rows cannot be approved; nothing was written",
                    counted(static_cast<std::uint64_t>(failed), "row")));
    return ExitCode::CheckFailed;
  }
  meta.plan_time_limits = limits_to_approve(check, std::move(meta.plan_time_limits));
  meta.approved = std::move(now);
  csv_file.write(csv);
  meta_file.write(baseline_meta_to_json(meta));
  say(fmt::format("approved; wrote {} and {}", on_one_line(options.baseline), on_one_line(options.meta())));
  return ExitCode::Done;
}

/// Writes NAME.meta.json with the grid of the options, for the user to review and approve.
ExitCode init(const CheckOptions& options)
{
  require_baseline_name(options);
  if (std::filesystem::exists(options.meta())) throw InputError(options.meta(), "exists already; edit it");
  if (options.platforms.empty()) throw InputError("--platforms", "missing; name the platforms of the rows");
  if (options.workloads.empty()) throw InputError("--workloads", "missing; name the workloads of the rows");
  BaselineMeta meta;
  meta.name = options.meta();
  meta.platforms = options.platforms;
  meta.workloads = options.workloads;
  meta.allocators = options.allocators;
  for (const auto& allocator : meta.allocators) allocators::require_allocator(allocator);
  for (const auto& objective : options.objectives) {
    meta.objectives.push_back(objective_of(objective));
  }
  const auto rows = rows_of(meta);
  const auto folder = std::filesystem::path(options.baseline).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  write_file_atomically(options.meta(), baseline_meta_to_json(meta));
  print(fmt::format("{}: {} row{}; make and approve them with isobar check {} --approve\n", on_one_line(options.meta()),
                    rows.size(), rows.size() == 1 ? "" : "s", on_one_line(options.baseline)));
  return ExitCode::Done;
}

/// The files that a check writes. They are opened before the work begins.
struct CheckFiles {
  OutputFile csv;
  OutputFile meta;
  OutputFile junit;
  OutputFile markdown;

  explicit CheckFiles(const CheckOptions& options)
      : csv(options.approve ? options.baseline : ""),
        meta(options.approve ? options.meta() : ""),
        junit(options.junit),
        markdown(options.markdown)
  {
  }
};

/// Reports today's rows and approves them where that is asked for. `against`: what they were compared with.
ExitCode conclude(const CheckOptions& options, const BaselineCheck& answer, const std::string& csv,
                  const BaselineMeta& meta, const Provenance& now, CheckFiles& files, const std::string& against)
{
  files.junit.write(check_to_junit(answer, against));
  files.markdown.write(check_to_markdown(answer, against));
  const bool prints_report = files.junit.is_standard_output() || files.markdown.is_standard_output();
  // Files come first: a reader that closes the pipe loses none of them.
  const auto approved =
      options.approve ? std::optional(approve(options, answer, csv, meta, now, files.csv, files.meta)) : std::nullopt;
  if (!prints_report) print(options.json ? check_to_json(answer, against) : check_to_text(answer, against));
  if (approved) return *approved;
  if (answer.holds()) return ExitCode::Done;
  if (options.base.empty()) {
    for (const auto& input : results::changed_inputs(*meta.approved, now)) say(input);
    say(fmt::format("if this is intended: isobar check {} --approve", on_one_line(options.baseline)));
  }
  return ExitCode::CheckFailed;
}

/// Checks the schedules of a sweep.
ExitCode check_sweep(const CheckOptions& options, const BaselineMeta& meta, Seconds row_time_limit)
{
  if (!options.base.empty()) {
    throw InputError("--base", options.meta() + " names a sweep of schedules; --base compares plans");
  }
  const auto runs = read_sweep_runs(meta.sweep);
  if (!runs->sweep().schedules_jobs()) {
    throw InputError(options.meta() + ": sweep", on_one_line(meta.sweep) + " has no `trace`; write a grid for plans");
  }
  std::vector<std::string> read = runs->inputs();
  Provenance now{ISOBAR_VERSION, sim::simgrid_version(), std::nullopt, sim::network_settings(), {}};
  for (const auto& file : read) now.inputs[file] = fingerprint(read_file(file));
  if (meta.approved && !options.approve) require_comparable(options, *meta.approved, now);
  read.insert(read.end(), {options.baseline, options.meta()});
  refuse_overwriting(read, {options.junit, options.markdown});
  const auto pending = results::failed_row("", "", runs->sweep().kind());
  const std::string header = sweep_header(runs->sweep(), runs->results_of({{0, pending}}).front());
  results::ScheduleTable before;
  if (!options.approve || std::filesystem::exists(options.baseline)) {
    before = results::schedules_from_csv(baseline_text(options), options.baseline, header);
  }
  CheckFiles files(options);
  std::vector<std::size_t> all(runs->sweep().runs());
  std::iota(all.begin(), all.end(), 0);
  std::map<std::string, results::SweepRow> by_definition;
  runs->make(all, std::thread::hardware_concurrency(), row_time_limit,
             [&](const results::SweepRow& row) { by_definition[row.definition] = row; });
  std::map<std::size_t, results::SweepRow> made;
  for (const auto run : all) made[run] = by_definition.at(runs->definition(run));
  const std::string csv = sweep_to_csv(runs->sweep(), runs->results_of(made));
  const BaselineCheck answer =
      results::check_schedules(before, results::schedules_from_csv(csv, "today's rows", header));
  return conclude(options, answer, csv, meta, now, files, options.baseline);
}

ExitCode check(const CheckOptions& options)
{
  const Seconds row_time_limit = row_time_limit_from(options.row_time_limit);
  if (options.approve && !options.base.empty()) {
    throw InputError("--approve",
                     "approves rows of this build, but --base compares with those of another; use only one");
  }
  const BaselineMeta meta = read_meta(options);
  if (!meta.approved && !options.approve && options.base.empty()) {
    throw InputError(options.meta(),
                     "approved: missing: no rows were approved yet; approve them with isobar check --approve");
  }
  if (!meta.sweep.empty()) return check_sweep(options, meta, row_time_limit);
  std::vector<ComparisonRow> rows = rows_of(meta);
  GridFiles inputs = files_of(rows, row_time_limit);
  inputs.read.insert(inputs.read.end(), {options.baseline, options.meta(), options.base});
  refuse_overwriting(inputs.read, {options.junit, options.markdown});
  const Provenance now{ISOBAR_VERSION, sim::simgrid_version(), cbc_version_for(meta), sim::network_settings(),
                       std::move(inputs.hashes)};
  if (meta.approved && !options.approve && options.base.empty()) require_comparable(options, *meta.approved, now);
  std::vector<ComparisonRow> before;
  if (options.base.empty()) before = baseline_rows(options);
  CheckFiles files(options);
  std::string against = options.baseline;
  if (!options.base.empty()) {
    against = options.base;
    before = rows_by(base_program(options.base, options.baseline), rows, meta, row_time_limit);
    share_bounds(before);
    require_some_answer(before, options.base);
    std::erase_if(before, has_failed);
  }

  make(rows, meta, row_time_limit);
  const BaselineCheck answer = results::check_baseline(before, rows, meta.plan_time_limits);
  return conclude(options, answer, baseline_to_csv(rows), meta, now, files, against);
}

}  // namespace

void add_check_command(CLI::App& app, Action& action)
{
  auto* command =
      app.add_subcommand("check", "make every row of a baseline again: plans or schedules; fails on any change");
  auto options = std::make_shared<CheckOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "BASELINE", options->baseline, "approved rows (NAME.csv, next to NAME.meta.json)")->required();
  command
      ->add_option("--base", options->base,
                   "compare with the rows of another build instead of BASELINE's: an isobar program, or a revision of "
                   "Isobar's repository, which is built")
      ->check(fault_of_file_name);
  command->option_defaults()->group("Baseline");
  command->add_flag("--approve", options->approve, "write the new rows to the baseline, better or worse");
  auto* init_flag = command->add_flag("--init", options->init,
                                      "begin a baseline: write NAME.meta.json with the grid of the options below");
  add_list(*command, "--platforms", options->platforms, "platform files, or quoted patterns of them")->needs(init_flag);
  add_list(*command, "--workloads", options->workloads, "workload files, or quoted patterns of them")->needs(init_flag);
  add_list(*command, "--allocators", options->allocators, "allocators (isobar list allocators)")->needs(init_flag);
  add_list(*command, "--objectives", options->objectives, "objectives (isobar list objectives)")->needs(init_flag);
  command->option_defaults()->group("Search");
  add_row_time_limit(*command, options->row_time_limit);
  command->option_defaults()->group("Output");
  add_output(*command, "--junit", options->junit, "report to write, for CI (JUnit XML)");
  add_output(*command, "--markdown", options->markdown, "summary to write, for a pull request (Markdown)");
  command->add_flag("--json", options->json, "print the changes as JSON");
  command->footer(check_footer);
  for (const auto* other : {"--approve", "--base", "--junit", "--markdown", "--json"}) {
    init_flag->excludes(command->get_option(other));
  }
  command->callback(
      [options, &action] { action = [options] { return options->init ? init(*options) : check(*options); }; });
}

}  // namespace isobar::cli

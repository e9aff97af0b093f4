#include "allocators/registry.hpp"
#include "cli/commands.hpp"
#include "cli/explanation_text.hpp"
#include "cli/frameworks/frameworks.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/rows.hpp"
#include "cli/table_options.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/compute/as_trained.hpp"
#include "core/text/quantity_text.hpp"
#include "results/comparison.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

namespace isobar::cli {

namespace {

constexpr auto compare_footer = R"(Example:
  isobar compare platforms/sky64.xml workloads/bert160.yaml \
    --allocators even,sky-dynamic,chain-dp --objective sequential,pipeline \
    -o results.csv
)";

struct CompareOptions {
  InputOptions inputs;
  GoalOptions goal;
  std::vector<std::string> without;
  std::vector<std::string> allocators = {"even", "sky-dynamic", "sky-dynamic-fixed", "chain-dp"};
  std::vector<std::string> objectives = {"step"};
  std::string start;
  std::string framework;
  std::string row_time_limit = "30min";
  std::string output;
  std::string keep;
  bool explain = false;
  bool strict = false;
  TableOptions table;
  bool json = false;
};

using results::ComparisonRow;

/// @throws InputError when it would end a search before --time-limit does, which would lose the plan found so far.
Seconds row_time_limit_of(const CompareOptions& options)
{
  const Seconds limit = row_time_limit_from(options.row_time_limit);
  const auto search_time = options.goal.search_time();
  if (search_time && limit <= *search_time) {
    throw InputError("--row-time-limit",
                     fmt::format("{} is not more than --time-limit {}, so no search would finish; raise it",
                                 shown(options.row_time_limit), shown(*options.goal.time_limit)));
  }
  return limit;
}

/// The files of one row's plan and result, written when the row ends.
struct KeptFiles {
  std::string plan;
  std::string result;
};

/// FOLDER/OBJECTIVE.ALLOCATOR.plan.json and .result.json; with several schedules OBJECTIVE.SCHEDULE.ALLOCATOR. In the
/// schedule's text and the allocator's name (exec:PROGRAM), other characters than letters, digits, "." and "-" become
/// "-".
KeptFiles kept_files_of(const CompareOptions& options, const ComparisonRow& row)
{
  const std::string schedule = options.goal.schedules.size() > 1 ? text_of(row.goal.schedule) + "." : "";
  std::string name = fmt::format("{}.{}{}", name_of(row.goal.objective), schedule, row.allocator);
  for (char& character : name) {
    const bool is_kept =
        std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '.' || character == '-';
    if (!is_kept) character = '-';
  }
  const std::string path = (std::filesystem::path(options.keep) / name).string();
  return {path + ".plan.json", path + ".result.json"};
}

/// Makes the folder. @throws InputError when it is another kind of file, or when a row would write a file of `read` or
/// of another row.
void prepare_folder(const CompareOptions& options, const std::vector<ComparisonRow>& rows,
                    const std::vector<std::string>& read)
{
  if (options.keep.empty()) return;
  std::error_code unknown;
  if (std::filesystem::exists(options.keep, unknown) && !std::filesystem::is_directory(options.keep, unknown)) {
    throw InputError(options.keep, "is not a folder; name one, or a new one");
  }
  std::filesystem::create_directories(options.keep, unknown);
  if (unknown) throw EnvironmentError(options.keep, "cannot make the folder: " + unknown.message());
  std::vector<std::string> outputs = {options.output};
  for (const auto& row : rows) {
    const auto files = kept_files_of(options, row);
    outputs.insert(outputs.end(), {files.plan, files.result});
  }
  refuse_overwriting(read, outputs);
}

results::Explanation explain(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  if (is_chain(plan)) return results::explain(plan, workload, cluster);
  const compute::AsTrained trained(plan, workload, cluster);
  const auto program_on = [&](const Cluster& devices) {
    return schedules::make_program(plan, trained.workload(), devices);
  };
  return results::explain_by_playing(plan, program_on, trained.workload(), trained.cluster());
}

/// What a row answers.
struct Question {
  std::string allocator;
  Goal goal;
};

/// The questions, by objective, schedule and allocator in the order of the options.
std::vector<Question> questions_of(const CompareOptions& options)
{
  std::vector<Question> questions;
  for (const auto& objective : options.objectives) {
    std::vector<std::vector<Goal>> goals;  // of each allocator, by schedule
    for (const auto& allocator : options.allocators) goals.push_back(options.goal.goals(objective, allocator));
    for (std::size_t schedule = 0; schedule < std::max<std::size_t>(1, options.goal.schedules.size()); ++schedule) {
      for (std::size_t i = 0; i < goals.size(); ++i) questions.push_back({options.allocators[i], goals[i][schedule]});
    }
  }
  return questions;
}

/// Adds the row of the plan that --start names. @throws InputError for a plan that does not hold on the inputs.
void add_given(const CompareOptions& options, const Inputs& inputs, std::vector<ComparisonRow>& rows,
               std::vector<std::function<std::string()>>& work)
{
  const Plan plan = schedules::read_scheduled_plan(options.start);
  if (plan.stages.empty()) throw InputError(options.start, "has no stages; name a plan with some");
  const Inputs own = load(options.inputs, inputs.platform, plan, options.start);
  check_plan(plan, options.start, own);
  const bool is_all = plan.recompute == all_recomputed(own.workload);
  const std::string recompute = plan.recompute.empty() ? "none"
                                : is_all               ? "all"
                                                       : fmt::format("{}", fmt::join(plan.recompute, ","));
  rows.push_back(pending_row(options.inputs, "start", plan.goal, recompute, options.goal.seed));
  work.emplace_back([own, plan] { return simulate_given(own, plan); });
}

ExitCode compare(const CompareOptions& options)
{
  const Seconds row_time_limit = row_time_limit_of(options);
  for (const auto& allocator : options.allocators) allocators::require_allocator(allocator);
  const std::vector<Question> questions = questions_of(options);
  for (const auto& [allocator, goal] : questions) {
    if (options.framework.empty()) continue;
    require_framework(options.framework, allocator, goal.schedule, options.goal.offloads(), "--for");
  }
  options.goal.check_search(options.allocators);
  Inputs inputs = load(options.inputs, {}, {options.without});
  inputs.platform.leave_out(inputs.without, "--without");
  if (options.goal.recompute) {
    Workload checked = inputs.workload;
    recompute_layers(checked, {*options.goal.recompute});
  }
  auto read = inputs.files();
  for (const auto& allocator : options.allocators) read.push_back(program_of(allocator));
  read.push_back(options.start);
  refuse_overwriting(read, {options.output});
  OutputFile output(options.output);
  note_approximations(inputs);

  std::vector<ComparisonRow> rows;
  std::vector<std::function<std::string()>> work;
  if (!options.start.empty()) add_given(options, inputs, rows, work);
  for (const auto& [allocator, goal] : questions) {
    const auto splits = batch_splits(options.goal, goal, inputs);
    auto limits = options.goal.limits(allocator);
    if (!options.framework.empty()) limits.rules = rules_of(options.framework, inputs.workload, "--for");
    const auto recomputed = options.goal.recompute_for(allocator);
    rows.push_back(pending_row(options.inputs, allocator, goal, recomputed.layers, options.goal.seed));
    work.emplace_back([&inputs, limits, recomputed, &allocator = allocator, &goal = goal, splits] {
      Inputs own = inputs;
      recompute_layers(own.workload, recomputed);
      return plan_and_simulate(own, allocator, goal, limits, splits);
    });
  }
  prepare_folder(options, rows, read);
  std::set<std::string> notes;
  const auto explain_and_keep = [&](ComparisonRow& row, const RowAnswer& answer) {
    if (const auto note = note_of_routing(answer.plan, inputs.workload)) notes.insert(*note);
    if (answer.plan.stages.empty()) return;
    if (row.step_time) row.basis = basis_of_step(inputs, answer.plan, *row.step_time);
    if (row.basis) row.interval = compute::interval_of(*row.basis, *row.step_time);
    const bool has_times_of_stages = answer.plan.goal.objective != Objective::DtFm;
    if (options.explain && has_times_of_stages) {
      row.explanation = explain(answer.plan, as_planned(inputs, answer.plan), inputs.platform.cluster());
    }
    if (options.keep.empty()) return;
    const auto files = kept_files_of(options, row);
    write_file_atomically(files.plan, plan_to_json(answer.plan));
    write_file_atomically(files.result, answer.result);
  };
  try {
    make_rows("compare", rows, work, row_time_limit, explain_and_keep);
  } catch (const Interrupted&) {
    // The rows that have ended are written below; the others say "interrupted".
  }
  for (const auto& note : notes) say(note);
  share_bounds(rows);
  output.write(comparison_to_csv(rows));
  if (!output.is_standard_output()) {
    print(options.json ? comparison_to_json(rows)
                       : comparison_table(rows, options.table.width()) +
                             explanations_of(rows, inputs.platform.cluster().devices.size()));
  }
  throw_if_interrupted();
  const auto failed = std::count_if(rows.begin(), rows.end(), has_failed);
  if (!options.strict || failed == 0) return exit_code_of(rows);
  say(fmt::format("{} of {} failed", failed, counted(rows.size(), "row")));
  return ExitCode::EnvironmentError;
}

}  // namespace

void add_compare_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("compare", "plan with several allocators and simulate each plan");
  auto options = std::make_shared<CompareOptions>();
  options->inputs.add_to(*command);
  add_without(*command, options->without);
  command->option_defaults()->group("Goal");
  add_list(*command, "--objective", options->objectives,
           fmt::format("what to minimize, one or more of {}", fmt::join(objective_names(), ", ")));
  options->goal.add_goals_to(*command);
  options->goal.add_global_batch_to(*command);
  command->option_defaults()->group("Search");
  add_list(*command, "--allocators", options->allocators, "allocators (isobar list allocators), or exec:PROGRAM");
  options->goal.add_search_to(*command);
  add_file(*command, "--start", options->start,
           "plan file (JSON) to lay beside the others, in the first row: an own one, or one of isobar convert");
  add_framework(*command, options->framework);
  add_row_time_limit(*command, options->row_time_limit);
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output, "table to write (CSV)");
  add_folder(*command, "--keep", options->keep,
             "folder for each placement's OBJECTIVE.ALLOCATOR.plan.json and .result.json, for isobar report");
  command->add_flag("--explain", options->explain,
                    "explain what limits each plan, and what relaxing it would save (not for objective dtfm)");
  command->add_flag("--strict", options->strict, "exit with 3 when any row failed (default: when all did)");
  options->table.add_to(*command);
  command->add_flag("--json", options->json, "print the rows as JSON");
  command->footer(compare_footer);
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace isobar::cli

#include "allocators/registry.hpp"
#include "cli/command.hpp"
#include "cli/explanation_text.hpp"
#include "cli/rows.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "results/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace isobar::cli {

namespace {

constexpr auto footer = R"(Example:
  isobar compare platforms/sky64.xml workloads/bert160.yaml \
    --allocators even,sky-dynamic,chain-dp --objective sequential,pipeline \
    -o results.csv
)";

struct CompareOptions {
  InputOptions inputs;
  GoalOptions goal;
  std::vector<std::string> allocators = {"even", "sky-dynamic", "sky-dynamic-fixed", "chain-dp"};
  std::vector<std::string> objectives = {"step"};
  std::string row_time_limit = "30min";
  std::string output;
  std::string keep;
  bool explain = false;
  bool strict = false;
  bool json = false;
};

using results::ComparisonRow;

/// @throws InputError where it would end a search before the search's own limit does, and so lose what was found.
Seconds row_time_limit_of(const CompareOptions& options, const allocators::SearchLimits& limits)
{
  const Seconds limit = row_time_limit_from(options.row_time_limit);
  if (limits.time_limit && limit <= *limits.time_limit) {
    throw InputError("--row-time-limit",
                     fmt::format("{} is not more than --time-limit {}, so no search would come to its end; write more",
                                 shown(options.row_time_limit), shown(*options.goal.time_limit)));
  }
  return limit;
}

/// The files of one row's plan and result, both there as soon as the row has ended.
struct KeptFiles {
  std::string plan;
  std::string result;
};

/// FOLDER/OBJECTIVE.ALLOCATOR.plan.json and .result.json; what no file's name has (exec:PROGRAM) becomes "-".
KeptFiles kept_files_of(const std::string& folder, const ComparisonRow& row)
{
  std::string name = fmt::format("{}.{}", name_of(row.goal.objective), row.allocator);
  for (char& character : name) {
    const bool fits = std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '.' || character == '-';
    if (!fits) character = '-';
  }
  const std::string path = (std::filesystem::path(folder) / name).string();
  return {path + ".plan.json", path + ".result.json"};
}

/// Makes the folder. @throws InputError when it is none, or when two rows, or a row and a file of `read`, share a file.
void prepare_folder(const CompareOptions& options, const std::vector<ComparisonRow>& rows,
                    const std::vector<std::string>& read)
{
  if (options.keep.empty()) return;
  std::error_code unknown;
  if (std::filesystem::exists(options.keep, unknown) && !std::filesystem::is_directory(options.keep, unknown)) {
    throw InputError(options.keep, "is no folder; name one, or a new one");
  }
  std::filesystem::create_directories(options.keep, unknown);
  if (unknown) throw EnvironmentError(options.keep, "cannot make the folder: " + unknown.message());
  std::vector<std::string> outputs = {options.output};
  for (const auto& row : rows) {
    const auto files = kept_files_of(options.keep, row);
    outputs.insert(outputs.end(), {files.plan, files.result});
  }
  refuse_overwriting(read, outputs);
}

ExitCode compare(const CompareOptions& options)
{
  const auto limits = options.goal.limits();
  const Seconds row_time_limit = row_time_limit_of(options, limits);
  std::vector<Goal> goals;
  for (const auto& objective : options.objectives) goals.push_back(options.goal.goal(objective));
  for (const auto& allocator : options.allocators) allocators::require_allocator(allocator);
  options.goal.check_polish(options.allocators);
  const Inputs inputs = load(options.inputs, options.goal);
  auto read = inputs.files();
  for (const auto& allocator : options.allocators) read.push_back(program_of(allocator));
  refuse_overwriting(read, {options.output});
  OutputFile output(options.output);
  note_missing_rates(inputs);

  std::vector<ComparisonRow> rows;
  std::vector<std::function<std::string()>> work;
  for (const Goal& goal : goals) {
    const auto splits = batch_splits(options.goal, goal, inputs);
    for (const auto& allocator : options.allocators) {
      rows.push_back(row_to_make(options.inputs, allocator, goal, limits.seed));
      work.emplace_back([&inputs, &limits, &allocator, goal, splits] {
        return plan_and_simulate(inputs, allocator, goal, limits, splits);
      });
    }
  }
  prepare_folder(options, rows, read);
  const auto explain_and_keep = [&](ComparisonRow& row, const RowAnswer& answer) {
    if (answer.plan.stages.empty()) return;
    if (options.explain) {
      row.explanation = results::explain(answer.plan, workload_of(inputs, answer.plan), inputs.platform.cluster());
    }
    if (options.keep.empty()) return;
    const auto files = kept_files_of(options.keep, row);
    write_file_atomically(files.plan, plan_to_json(answer.plan));
    write_file_atomically(files.result, answer.result);
  };
  try {
    make_rows("compare", rows, work, row_time_limit, explain_and_keep);
  } catch (const Interrupted&) {
    // What was found so far is written below; rows that did not end say so.
  }
  share_bounds(rows);
  output.write(comparison_to_csv(rows));
  if (!output.is_standard_output()) {
    print(options.json ? comparison_to_json(rows)
                       : comparison_table(rows) + explanations_of(rows, inputs.platform.cluster().devices.size()));
  }
  throw_if_interrupted();
  const auto failed = std::count_if(rows.begin(), rows.end(), has_failed);
  if (!options.strict || failed == 0) return exit_code_of(rows);
  say(fmt::format("{} of {} rows failed", failed, rows.size()));
  return ExitCode::EnvironmentError;
}

}  // namespace

void add_compare_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("compare", "plan by several allocators and simulate each plan");
  auto options = std::make_shared<CompareOptions>();
  options->inputs.add_to(*command);
  add_list(*command, "--allocators", options->allocators, "allocators (isobar list allocators), or exec:PROGRAM");
  add_list(*command, "--objective", options->objectives, "one or more of step, sequential, bottleneck, pipeline");
  options->goal.add_to(*command);
  options->goal.add_global_batch_to(*command);
  command->add_option("--row-time-limit", options->row_time_limit, "planning and simulating one row ends then")
      ->capture_default_str();
  add_output(*command, "-o,--output", options->output, "table to write (CSV)");
  add_file(*command, "--keep", options->keep,
           "folder for each placement's OBJECTIVE.ALLOCATOR.plan.json and .result.json, for isobar report");
  command->add_flag("--explain", options->explain, "say what binds each plan, and what relaxing it is worth");
  command->add_flag("--strict", options->strict, "exit with 3 when any row failed; default: when all did");
  command->add_flag("--json", options->json, "print the rows as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace isobar::cli

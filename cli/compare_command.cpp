#include "cli/command.hpp"
#include "cli/explanation_text.hpp"
#include "cli/rows.hpp"
#include "core/interrupt.hpp"
#include "results/comparison.hpp"

#include <fmt/format.h>

namespace isobar::cli {

namespace {

constexpr auto footer = R"(Example:
  isobar compare platforms/sky64.xml workloads/bert160.yaml --allocators even,sky-dynamic,chain-dp \
    --objective sequential,pipeline -o results.csv
)";

struct CompareOptions {
  InputOptions inputs;
  GoalOptions goal;
  std::vector<std::string> allocators = {"even", "sky-dynamic", "sky-dynamic-fixed", "chain-dp"};
  std::vector<std::string> objectives = {"pipeline"};
  std::string row_time_limit = "30min";
  std::string output;
  bool explain = false;
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

ExitCode compare(const CompareOptions& options)
{
  const auto limits = options.goal.limits();
  refuse_overwriting({options.inputs.platform, options.inputs.workload}, {options.output});
  const Seconds row_time_limit = row_time_limit_of(options, limits);
  std::vector<Goal> goals;
  for (const auto& objective : options.objectives) goals.push_back(options.goal.goal(objective));
  for (const auto& allocator : options.allocators) allocators::require_policy(allocator);
  options.goal.check_polish(options.allocators, goals);
  const Inputs inputs = load(options.inputs, options.goal);
  OutputFile output(options.output);

  std::vector<ComparisonRow> rows;
  std::vector<std::function<std::string()>> work;
  for (const Goal& goal : goals) {
    for (const auto& allocator : options.allocators) {
      rows.push_back(row_to_make(options.inputs, allocator, goal, limits.seed));
      work.emplace_back(
          [&inputs, &limits, &allocator, goal] { return plan_and_simulate(inputs, allocator, goal, limits); });
    }
  }
  const auto explain = [&](ComparisonRow& row, const Plan& plan) {
    if (!options.explain || plan.stages.empty()) return;
    row.explanation = results::explain(plan, inputs.workload, inputs.platform.cluster());
  };
  try {
    make_rows("compare", rows, work, row_time_limit, explain);
  } catch (const Interrupted&) {
    // What was found so far is written below; rows that did not end say so.
  }
  output.write(comparison_to_csv(rows));
  print(options.json ? comparison_to_json(rows)
                     : comparison_table(rows) + explanations_of(rows, inputs.platform.cluster().devices.size()));
  throw_if_interrupted();
  return exit_code_of(rows);
}

}  // namespace

void add_compare_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("compare", "plan by several allocators and simulate each plan");
  auto options = std::make_shared<CompareOptions>();
  options->inputs.add_to(*command);
  command->add_option("--allocators", options->allocators, "policies (isobar list allocators), or exec:PROGRAM")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--objective", options->objectives, "one or more of sequential, bottleneck, pipeline")
      ->delimiter(',')
      ->capture_default_str();
  options->goal.add_to(*command);
  command->add_option("--row-time-limit", options->row_time_limit, "planning and simulating one row ends then")
      ->capture_default_str();
  add_file(*command, "-o,--output", options->output, "table to write (CSV)");
  command->add_flag("--explain", options->explain, "say what binds each plan, and what relaxing it is worth");
  command->add_flag("--json", options->json, "print the rows as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace isobar::cli

#include "cli/commands.hpp"
#include "cli/fidelity/prediction.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/rows.hpp"
#include "cli/table_options.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/text/quantity_text.hpp"
#include "results/fidelity/figures.hpp"
#include "results/fidelity/limits.hpp"
#include "results/fidelity/report.hpp"
#include "results/fidelity/row_files.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <utility>

namespace isobar::cli {

namespace {

using results::FidelityLimits;
using results::MeasuredRow;
using results::PredictedRow;

constexpr auto fidelity_footer = R"(Errors are predicted / measured - 1; their means count them without sign.
docs/formats/fidelity.md has the columns of FILE, and the keys of --limits.
Exit codes: 0 done · 2 a wrong file · 3 predictions failed, and none ended
            4 every row is unsupported · 5 a figure is beyond its limit

Example:
  isobar fidelity results/fidelity/measured/mpt_h100.csv \
    --explain 7b-s2048-n8-b48
)";

struct FidelityOptions {
  std::vector<std::string> files;
  bool unfolded = false;
  std::string row_time_limit = "10min";
  std::string explain;
  std::string limits;
  std::string system;
  std::string folder;
  std::string csv;
  std::string markdown;
  TableOptions table;
  bool json = false;
};

std::vector<std::string> inputs_of(const FidelityOptions& options, const std::vector<MeasuredRow>& rows)
{
  std::vector<std::string> inputs = results::files_named_by(rows);
  inputs.insert(inputs.end(), options.files.begin(), options.files.end());
  inputs.insert(inputs.end(), {options.limits, options.system});
  return inputs;
}

std::optional<FidelityLimits> limits_of(const FidelityOptions& options, const std::vector<MeasuredRow>& rows)
{
  if (options.limits.empty()) return std::nullopt;
  std::vector<std::string> sets;
  for (const auto& row : rows) {
    if (std::ranges::count(sets, row.set) == 0) sets.push_back(row.set);
  }
  return results::read_fidelity_limits(options.limits, sets);
}

/// Refuses rows that no folder of --export can be named after.
void require_folder_names(const std::vector<MeasuredRow>& rows)
{
  for (const auto& row : rows) {
    for (const auto& [column, name] : {std::pair("set", row.set), std::pair("row", row.name)}) {
      if (name != "." && name != ".." && name.find('/') == std::string::npos) continue;
      throw InputError(fmt::format("{}:{}", row.file, row.line),
                       fmt::format("{}: {} cannot name a folder of --export; leave / out", column, in_quotes(name)));
    }
  }
}

const MeasuredRow& explained_row(const std::string& name, const std::vector<MeasuredRow>& rows)
{
  const MeasuredRow& row = results::row_named(name, rows, "--explain");
  if (row.role == results::RowRole::Excluded) {
    throw InputError("--explain", fmt::format("{} is excluded from predictions; name another row", in_quotes(name)));
  }
  return row;
}

/// Fills in what the child of a row answered. A row that the models cannot express costs no other row.
void fill(PredictedRow& row, const ChildResult& result)
{
  if (!result.failure) {
    row.prediction = results::prediction_from_json(result.output);
    row.failure.clear();
  } else if (result.failure->code == ExitCode::InputError || result.failure->code == ExitCode::Infeasible) {
    row.prediction.unsupported = on_one_line(result.failure->text);
    row.failure.clear();
  } else {
    row.failure = result.failure->text;
  }
}

/// Predicts each row in a child process, since a process simulates once. Rows whose child did not end have failed.
/// @throws Interrupted, without any row.
std::vector<PredictedRow> predicted(const std::vector<MeasuredRow>& rows, const FidelityOptions& options,
                                    Seconds row_time_limit)
{
  std::optional<compute::Calibration> system;
  if (!options.system.empty()) system = compute::read_calibration(options.system);
  std::vector<PredictedRow> all;
  std::vector<std::size_t> places;  // in `all`, of each piece of work
  std::vector<std::function<std::string()>> work;
  for (const auto& row : rows) {
    all.push_back({row, {}, ""});
    if (row.role == results::RowRole::Excluded) continue;
    places.push_back(all.size() - 1);
    work.emplace_back([&row, &options, &system] {
      const auto folder = std::filesystem::path(options.folder) / row.set / row.name;
      return prediction_to_json(
          predict(row, {options.unfolded, options.folder.empty() ? "" : folder.string(), system}));
    });
  }
  ProgressLine progress("fidelity", work.size());
  std::size_t ended = 0;
  run_in_children(work, std::thread::hardware_concurrency(), {row_time_limit, "--row-time-limit"},
                  [&](std::size_t index, const ChildResult& result) {
                    fill(all[places[index]], result);
                    progress.done(++ended);
                  });
  return all;
}

/// Done when a row was predicted; otherwise EnvironmentError when a prediction failed, else Infeasible.
ExitCode exit_code_of_predictions(const std::vector<PredictedRow>& rows)
{
  const auto any = [&rows](std::string_view status) {
    return std::ranges::any_of(rows, [status](const PredictedRow& row) { return row.status() == status; });
  };
  if (any("predicted")) return ExitCode::Done;
  return any("failed") ? ExitCode::EnvironmentError : ExitCode::Infeasible;
}

ExitCode explain(const FidelityOptions& options, const std::vector<MeasuredRow>& rows, Seconds row_time_limit)
{
  const auto row = predicted({explained_row(options.explain, rows)}, options, row_time_limit);
  print(options.json ? explanation_to_json(row.front()) : explanation_to_text(row.front()));
  return exit_code_of_predictions(row);
}

ExitCode fidelity(const FidelityOptions& options)
{
  const Seconds row_time_limit = row_time_limit_from(options.row_time_limit);
  const std::vector<MeasuredRow> measured = results::measured_rows_of(options.files);
  if (!options.folder.empty()) require_folder_names(measured);
  if (!options.explain.empty()) return explain(options, measured, row_time_limit);
  const auto limits = limits_of(options, measured);
  refuse_overwriting(inputs_of(options, measured), {options.csv, options.markdown});
  if (options.json && (options.csv == "-" || options.markdown == "-")) {
    throw InputError("--json", "is written to standard output, as is what has the file -; name a file");
  }
  OutputFile csv(options.csv);
  OutputFile markdown(options.markdown);

  std::vector<PredictedRow> rows = predicted(measured, options, row_time_limit);
  add_floors(rows);
  const auto figures = fidelity_figures(rows);
  const auto beyond = limits ? beyond_limits(*limits, figures) : std::vector<std::string>();
  csv.write(fidelity_to_csv(rows));
  markdown.write(fidelity_to_markdown(rows, figures));
  if (!csv.is_standard_output() && !markdown.is_standard_output()) {
    print(options.json ? fidelity_to_json(rows, figures, beyond)
                       : fidelity_to_text(rows, figures, options.table.width()));
  }
  for (const auto& line : beyond) say(line);
  return beyond.empty() ? exit_code_of_predictions(rows) : ExitCode::CheckFailed;
}

}  // namespace

void add_fidelity_command(CLI::App& app, Action& action)
{
  auto* command =
      app.add_subcommand("fidelity", "predict published training runs, and how far off the predictions are");
  auto options = std::make_shared<FidelityOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "FILE", options->files, "measured runs (CSV, docs/formats/fidelity.md)")->required();
  add_file(*command, "--system", options->system,
           "predict with calibrated software and links (YAML; isobar calibrate writes it; default: as shipped)");
  command->option_defaults()->group("Search");
  command->add_flag("--unfolded", options->unfolded,
                    "simulate every rank (default: equal replicas and shards are simulated once where that is exact)");
  add_row_time_limit(*command, options->row_time_limit);
  command->option_defaults()->group("Output");
  auto* limits = add_file(*command, "--limits", options->limits,
                          "worst figures of sets (YAML or JSON); exit with 5 if a figure is beyond its limit");
  add_file(
      *command, "--export", options->folder,
      "folder for the rows as platform.xml, workload.yaml and plan.json, in SET/ROW, which verify and simulate take, "
      "with a --profile for each of the row's");
  auto* csv = add_output(*command, "--csv", options->csv, "write a line for each row, with its parts (CSV)");
  auto* markdown = add_output(*command, "--markdown", options->markdown, "write the tables in Markdown");
  command
      ->add_option("--explain", options->explain,
                   "predict only this row, ROW or SET/ROW, and print its parts, machine, plan and constants")
      ->excludes(limits)
      ->excludes(csv)
      ->excludes(markdown);
  options->table.add_to(*command);
  command->add_flag("--json", options->json, "print figures and rows as JSON");
  command->footer(fidelity_footer);
  command->callback([options, &action] { action = [options] { return fidelity(*options); }; });
}

}  // namespace isobar::cli

#include "cli/command.hpp"
#include "cli/rows.hpp"
#include "cli/sweep_runs.hpp"
#include "core/interrupt.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <thread>

namespace isobar::cli {

namespace {

constexpr auto footer = R"(Example:
  isobar sweep examples/bandwidth_sweep.yaml --csv bandwidth.csv

docs/sweeps.md says what stands in SWEEP. A second start goes on where the first was ended.
)";

struct SweepOptions {
  std::string sweep;
  std::string database;
  std::string csv;
  std::string json_lines;
  std::string summary;
  std::string row_time_limit = "30min";
  std::size_t jobs = 0;
  bool retry_failed = false;
  bool export_only = false;
  bool json = false;

  std::string database_file() const
  {
    return database.empty() ? std::filesystem::path(sweep).stem().string() + ".db" : database;
  }
};

/// Makes the runs that the database lacks.
void make_missing(const SweepOptions& options, const SweepRuns& runs, results::SweepStore& store)
{
  const auto missing = runs.missing_in(store, options.retry_failed);
  std::size_t made = 0;
  try {
    runs.make(missing, options.jobs == 0 ? std::thread::hardware_concurrency() : options.jobs,
              row_time_limit_from(options.row_time_limit), [&](const results::SweepRow& row) {
                store.put(row);
                ++made;
              });
  } catch (const Interrupted&) {
    fmt::print(stderr, "isobar: {} of {} runs are in {}; the same command goes on\n",
               runs.sweep().runs() - missing.size() + made, runs.sweep().runs(), options.database_file());
    throw;
  }
}

ExitCode sweep(const SweepOptions& options)
{
  row_time_limit_from(options.row_time_limit);
  const SweepRuns runs(options.sweep);
  refuse_overwriting(runs.inputs(), {options.database_file(), options.csv, options.json_lines, options.summary});
  if (options.export_only && !std::filesystem::exists(options.database_file())) {
    throw InputError(options.database_file(), "no such file; without --export-only the sweep makes it");
  }
  OutputFile csv(options.csv);
  OutputFile json_lines(options.json_lines);
  OutputFile summary(options.summary);
  results::SweepStore store(options.database_file());
  if (!options.export_only) make_missing(options, runs, store);

  const auto found = runs.results_in(store);
  csv.write(sweep_to_csv(runs.sweep(), found));
  json_lines.write(sweep_to_json_lines(runs.sweep(), found));
  summary.write(sweep_summary_to_csv(runs.sweep(), found));
  print(options.json ? sweep_summary_to_json(runs.sweep(), found) : sweep_summary_table(runs.sweep(), found));
  std::vector<results::ComparisonRow> rows;
  for (const auto& result : found) rows.push_back(result.row);
  return exit_code_of(rows);
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("sweep", "plan and simulate a grid of platforms, workloads and policies");
  auto options = std::make_shared<SweepOptions>();
  add_file(*command, "SWEEP", options->sweep, "what to vary (YAML)")->required();
  add_file(*command, "--database", options->database, "where the rows go as they come (default: NAME.db of NAME.yaml)");
  add_file(*command, "--csv", options->csv, "table of all rows to write (CSV)");
  add_file(*command, "--jsonl", options->json_lines, "the same as JSON lines");
  add_file(*command, "--summary", options->summary, "means over the seeds to write (CSV)");
  add_count(*command, "--jobs", options->jobs, "runs at a time (default: as many as there are cores)");
  command->add_option("--row-time-limit", options->row_time_limit, "planning and simulating one row ends then")
      ->capture_default_str();
  command->add_flag("--retry-failed", options->retry_failed, "run those again that failed");
  command->add_flag("--export-only", options->export_only, "run nothing; write what the database has");
  command->add_flag("--json", options->json, "print the means as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return sweep(*options); }; });
}

}  // namespace isobar::cli

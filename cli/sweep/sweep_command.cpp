#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/rows.hpp"
#include "cli/sweep/sweep_on_slurm.hpp"
#include "cli/sweep/sweep_runs.hpp"
#include "cli/table_options.hpp"
#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "results/comparison.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

namespace isobar::cli {

namespace {

constexpr auto sweep_footer = R"(docs/sweeps.md describes SWEEP. A second start continues where the first ended.

Example:
  isobar sweep examples/bandwidth_sweep.yaml --csv bandwidth.csv
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
  bool slurm = false;
  std::string slurm_options;
  std::string rows;
  std::string runs;
  TableOptions table;
  bool json = false;

  std::size_t jobs_or(std::size_t standard) const { return jobs == 0 ? standard : jobs; }
  std::string database_file() const
  {
    return database.empty() ? std::filesystem::path(sweep).stem().string() + ".db" : database;
  }
};

/// Makes the runs that the database lacks, on this machine.
void make_here(const SweepOptions& options, const SweepRuns& runs, results::SweepStore& store)
{
  const auto missing = runs.missing_in(store, options.retry_failed);
  std::size_t made = 0;
  try {
    runs.make(missing, options.jobs_or(std::thread::hardware_concurrency()),
              row_time_limit_from(options.row_time_limit), [&](const results::SweepRow& row) {
                store.put(row);
                ++made;
              });
  } catch (const Interrupted&) {
    say(fmt::format("{} of {} runs are in {}; the same command continues", runs.sweep().runs() - missing.size() + made,
                    runs.sweep().runs(), on_one_line(options.database_file())));
    throw;
  }
}

void make_by_tasks(const SweepOptions& options, const SweepRuns& runs, results::SweepStore& store)
{
  SlurmSweep sweep;
  sweep.database = options.database_file();
  sweep.task_options = {"--row-time-limit", options.row_time_limit, "--jobs", fmt::format("{}", options.jobs_or(1))};
  sweep.sbatch_options = options.slurm_options;
  sweep.retry_failed = options.retry_failed;
  make_on_slurm(runs, store, sweep);
}

ExitCode sweep(const SweepOptions& options)
{
  const Seconds row_time_limit = row_time_limit_from(options.row_time_limit);
  const std::unique_ptr<SweepRuns> read = read_sweep_runs(options.sweep);
  const SweepRuns& runs = *read;
  if (!options.rows.empty()) {
    make_into_folder(runs, options.runs, options.rows, options.jobs_or(1), row_time_limit);
    return ExitCode::Done;
  }
  // SQLite keeps new rows in files next to the database.
  const std::string database = options.database_file();
  refuse_overwriting(runs.inputs(), {database, database + "-wal", database + "-shm", options.csv, options.json_lines,
                                     options.summary});
  if (options.export_only && !std::filesystem::exists(options.database_file())) {
    throw InputError(options.database_file(), "no such file; without --export-only the sweep makes it");
  }
  OutputFile csv(options.csv);
  OutputFile json_lines(options.json_lines);
  OutputFile summary(options.summary);
  using Access = results::SweepStore::Access;
  results::SweepStore store(options.database_file(), runs.sweep().kind(),
                            options.export_only ? Access::Read : Access::Write);
  if (options.slurm) {
    make_by_tasks(options, runs, store);
  } else if (!options.export_only) {
    make_here(options, runs, store);
  }

  const auto found = runs.results_in(store);
  csv.write(sweep_to_csv(runs.sweep(), found));
  json_lines.write(sweep_to_json_lines(runs.sweep(), found));
  summary.write(sweep_summary_to_csv(runs.sweep(), found));
  const bool prints_table = csv.is_standard_output() || json_lines.is_standard_output() || summary.is_standard_output();
  if (!prints_table) {
    print(options.json ? sweep_summary_to_json(runs.sweep(), found)
                       : sweep_summary_table(runs.sweep(), found, options.table.width()));
  }
  const auto any = [&found](auto predicate) { return std::any_of(found.begin(), found.end(), predicate); };
  if (any([&](const auto& result) { return is_simulated(runs.sweep(), result); })) return ExitCode::Done;
  const bool has_failed = any([](const auto& result) { return result.outcome == results::failed_outcome; });
  return has_failed ? ExitCode::EnvironmentError : ExitCode::Infeasible;
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand(
      "sweep", "simulate a grid of platforms, workloads and allocators, or schedule one of traces of jobs");
  auto options = std::make_shared<SweepOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "SWEEP", options->sweep, "parameters to vary (YAML)")->required();
  command->option_defaults()->group("Search");
  add_count(*command, "--jobs", options->jobs, "runs at a time (default: the number of cores; 1 in a Slurm task)");
  add_row_time_limit(*command, options->row_time_limit);
  command->add_flag("--retry-failed", options->retry_failed, "repeat runs that failed");
  command->option_defaults()->group("Output");
  add_file(*command, "--database", options->database,
           "SQLite database that receives each row when it is done (default: NAME.db for NAME.yaml)");
  add_output(*command, "--csv", options->csv, "table of all rows to write (CSV)");
  add_output(*command, "--jsonl", options->json_lines, "the same table to write, as JSON lines");
  add_output(*command, "--summary", options->summary, "means over the seeds to write (CSV)");
  auto* export_only =
      command->add_flag("--export-only", options->export_only, "run nothing; write the rows of the database");
  options->table.add_to(*command);
  command->add_flag("--json", options->json, "print the means as JSON");
  command->option_defaults()->group("Cluster (Slurm)");
  auto* slurm = command
                    ->add_flag("--slurm", options->slurm,
                               "make the runs as a job array of the Slurm cluster, --jobs at a time in a task")
                    ->excludes(export_only);
  command
      ->add_option("--slurm-options", options->slurm_options,
                   "options for its sbatch, such as \"--partition=long --time=60\"")
      ->needs(slurm);
  auto* rows = add_file(*command, "--rows", options->rows,
                        "folder to write the row of each run of --runs to, a file each, as a task does");
  auto* range =
      command->add_option("--runs", options->runs, "runs to make with --rows, FIRST-LAST, from 0")->needs(rows);
  rows->needs(range);
  for (const auto* other : {"--database", "--csv", "--jsonl", "--summary", "--retry-failed", "--wide", "--json",
                            "--export-only", "--slurm"}) {
    rows->excludes(command->get_option(other));
  }
  command->footer(sweep_footer);
  command->callback([options, &action] { action = [options] { return sweep(*options); }; });
}

}  // namespace isobar::cli

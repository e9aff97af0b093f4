#pragma once

#include "cli/sweep/sweep_runs.hpp"
#include "core/units.hpp"
#include "results/sweep/sweep_store.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::cli {

/// How to run a sweep as a Slurm job array.
struct SlurmSweep {
  std::filesystem::path database;         ///< tasks write rows and logs to a folder of this name + ".slurm"
  std::vector<std::string> task_options;  ///< options of `isobar sweep` in each task
  std::string sbatch_options;             ///< as the user wrote them
  bool retry_failed = false;
};

/// Makes the runs that the store lacks with a job array, and returns when the store has all of them. First takes the
/// rows that tasks of an earlier start have written; waits for those that are still queued or running, without
/// submitting them again.
/// @throws Interrupted, after printing to stderr which jobs continue; EnvironmentError when tasks ended without their
/// rows, as killed ones do: the next start submits them again.
void make_on_slurm(const SweepRuns& runs, results::SweepStore& store, const SlurmSweep& sweep);

/// The work of a task: makes the runs of `range` (FIRST-LAST, cut at the last run of the sweep). Writes the row of each
/// run that ends to a file in the folder. Skips runs whose file exists. @throws InputError naming --runs or --rows.
void make_into_folder(const SweepRuns& runs, const std::string& range, const std::filesystem::path& folder,
                      std::size_t jobs, Seconds row_time_limit);

}  // namespace isobar::cli

#pragma once

#include "cli/sweep/sweep_runs.hpp"
#include "core/units.hpp"
#include "results/sweep/sweep_store.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::cli {

/// How a sweep is to run as a Slurm job array.
struct SlurmSweep {
  std::filesystem::path database;  ///< rows, script and logs of the tasks lie in a folder of this name + ".slurm"
  std::vector<std::string> task_options;  ///< of the `isobar sweep` that a task is
  std::string sbatch_options;             ///< as the user wrote them
  bool retry_failed = false;
};

/// Makes the runs that the store lacks by a job array, and returns when it has all of them. First takes what tasks of
/// an earlier start have written; what of these still waits or runs is waited for and not submitted again.
/// @throws Interrupted, after saying on stderr which jobs go on; EnvironmentError when tasks ended without their rows,
/// as killed ones do: the next start submits them again.
void make_on_slurm(const SweepRuns& runs, results::SweepStore& store, const SlurmSweep& sweep);

/// What a task does: makes the runs of `range`, FIRST-LAST, as far as there are so many, and writes the row of each to
/// a file of the folder as it comes; those whose file is there it leaves out. @throws InputError naming --runs or
/// --rows.
void make_into_folder(const SweepRuns& runs, const std::string& range, const std::filesystem::path& folder,
                      std::size_t jobs, Seconds row_time_limit);

}  // namespace isobar::cli

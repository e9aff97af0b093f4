#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace isobar::cli {

/// Runs numbered from 0 as the tasks of a Slurm job array: task t does `runs_per_task` of them, from run
/// t * runs_per_task on.
struct JobArray {
  std::string name;              ///< of the job; nothing else in the queue is called so
  std::filesystem::path folder;  ///< for the script and the tasks' logs; there already, seen by every node, absolute
  std::vector<std::string> command;  ///< what a task runs; the runs that it is to do, FIRST-LAST, are added to it
  std::size_t runs_per_task = 1;
  std::string options;  ///< for sbatch, as the user wrote them; ours go before theirs

  std::filesystem::path script() const { return folder / "script.sh"; }
  std::filesystem::path log_of_task(std::size_t task) const { return folder / (std::to_string(task) + ".log"); }
};

/// How many runs a task has to do, so that there are no more than `most_tasks` of them.
std::size_t runs_per_task(std::size_t runs, std::size_t most_tasks);

/// The tasks that have some of these runs.
std::set<std::size_t> tasks_with(const std::vector<std::size_t>& runs, std::size_t runs_per_task);

/// Tasks as sbatch --array takes them: "0-2,5".
std::string array_text(const std::set<std::size_t>& tasks);

/// The batch script of an array: POSIX sh, with every path in quotes. @throws InputError when the options are no one
/// line.
std::string script_of(const JobArray& array);

/// What the queue knows of the tasks of a job's name.
struct QueuedTasks {
  std::set<std::string> jobs;               ///< ids of those with tasks that wait or run
  std::set<std::size_t> active;             ///< tasks that wait or run
  std::map<std::size_t, std::string> ends;  ///< how a task that does neither ended, while Slurm remembers: "TIMEOUT"
};

/// Reads what squeue printed: a line "JOB TASK STATE" each.
QueuedTasks queued_tasks_from(const std::string& printed);

/// How many tasks an array may have here; no more than 1,000, more than which would only burden the scheduler.
/// @throws EnvironmentError when Slurm's commands are not there, or its controller does not answer.
std::size_t most_array_tasks();

/// What the queue knows of this name's tasks; nullopt when the controller did not answer, which may pass.
/// @throws EnvironmentError when there is no squeue.
std::optional<QueuedTasks> tasks_in_queue(const std::string& name);

/// Writes the script and submits these tasks. @returns the job's id. @throws InputError with what sbatch said when it
/// refused the user's options, EnvironmentError when it refused without any.
std::string submit(const JobArray& array, const std::set<std::size_t>& tasks);

}  // namespace isobar::cli

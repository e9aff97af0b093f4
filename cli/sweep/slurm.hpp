#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace isobar::cli {

/// A Slurm job array whose tasks make runs: task t makes `runs_per_task` of them, from run t * runs_per_task.
struct JobArray {
  std::string name;                  ///< of the job; unique in the queue
  std::filesystem::path folder;      ///< for the script and the tasks' logs; exists, on every node; absolute
  std::vector<std::string> command;  ///< of a task; its runs, FIRST-LAST, are appended
  std::size_t runs_per_task = 1;
  std::string options;  ///< for sbatch, as the user wrote them; ours take precedence

  std::filesystem::path script() const { return folder / "script.sh"; }
  std::filesystem::path log_of_task(std::size_t task) const { return folder / (std::to_string(task) + ".log"); }
};

/// The number of runs in each task, so that there are at most `most_tasks` tasks.
std::size_t runs_per_task(std::size_t runs, std::size_t most_tasks);

/// The tasks that make these runs.
std::set<std::size_t> tasks_with(const std::vector<std::size_t>& runs, std::size_t runs_per_task);

/// Tasks as sbatch --array takes them: "0-2,5".
std::string array_text(const std::set<std::size_t>& tasks);

/// The batch script of an array: POSIX sh, with every path in quotes. @throws InputError when the options are more than
/// one line.
std::string script_of(const JobArray& array);

/// The tasks that the queue has for the name of a job.
struct QueuedTasks {
  std::set<std::string> jobs;               ///< ids of jobs with active tasks
  std::set<std::size_t> active;             ///< tasks that are waiting or running
  std::map<std::size_t, std::string> ends;  ///< state of each ended task, such as "TIMEOUT", while Slurm remembers it
};

/// Reads the output of squeue, a line "JOB TASK STATE" for each task.
QueuedTasks queued_tasks_from(const std::string& printed);

/// The most tasks that an array may have on this cluster, at most 1,000: more would only burden the scheduler.
/// @throws EnvironmentError when Slurm's commands are missing, or its controller does not answer.
std::size_t most_array_tasks();

/// Asks the queue for the tasks of this name; nullopt when the controller did not answer, which may be temporary.
/// @throws EnvironmentError when there is no squeue.
std::optional<QueuedTasks> tasks_in_queue(const std::string& name);

/// Writes the script and submits these tasks. @returns the job's id. @throws InputError with the message of sbatch when
/// it refuses and the user gave options, EnvironmentError when it refuses without any.
std::string submit(const JobArray& array, const std::set<std::size_t>& tasks);

}  // namespace isobar::cli

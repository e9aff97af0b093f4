#include "cli/sweep/slurm.hpp"

#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace isobar::cli {

namespace {

namespace fs = std::filesystem;

/// Slurm's commands wait a minute or more for a busy controller before they give up on their own.
constexpr Seconds most_for_a_command(300);

/// States of a job that has ended, as squeue names them; in all others it waits, runs, or will run again.
const std::set<std::string> final_states = {"BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE", "FAILED",
                                            "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",  "TIMEOUT"};

/// Runs one of Slurm's commands. @throws EnvironmentError when it is missing.
ChildResult run_slurm(const std::vector<std::string>& arguments)
{
  try {
    return run_command(arguments, "", most_for_a_command);
  } catch (const EnvironmentError& fault) {
    throw EnvironmentError(
        fmt::format("{}; --slurm needs Slurm's commands sbatch, squeue and scontrol on the PATH", fault.what()));
  }
}

std::string joined_lines(const std::string& text)
{
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) all += (all.empty() ? "" : "; ") + line;
  }
  constexpr std::size_t longest = 500;
  return shown(all, longest);
}

/// The message of a Slurm command that failed.
std::string complaint_of(const ChildResult& result)
{
  const std::string message = joined_lines(result.errors);
  return message.empty() && result.failure ? result.failure->text : message;
}

std::string in_shell_quotes(const std::string& text)
{
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

/// A path as sbatch --output takes it: a % begins a pattern there.
std::string as_output_name(const fs::path& path)
{
  std::string name;
  for (const char letter : path.string()) name += letter == '%' ? "%%" : std::string(1, letter);
  return name;
}

std::optional<std::size_t> number_in(const std::string& text)
{
  std::size_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = fault == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional(number) : std::nullopt;
}

}  // namespace

std::size_t runs_per_task(std::size_t runs, std::size_t most_tasks)
{
  return std::max<std::size_t>(1, (runs + most_tasks - 1) / most_tasks);
}

std::set<std::size_t> tasks_with(const std::vector<std::size_t>& runs, std::size_t runs_per_task)
{
  std::set<std::size_t> tasks;
  for (const std::size_t run : runs) tasks.insert(run / runs_per_task);
  return tasks;
}

std::string array_text(const std::set<std::size_t>& tasks)
{
  std::vector<std::string> ranges;
  for (auto task = tasks.begin(); task != tasks.end();) {
    const std::size_t first = *task;
    std::size_t last = first;
    for (++task; task != tasks.end() && *task == last + 1; ++task) last = *task;
    ranges.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
  }
  return fmt::format("{}", fmt::join(ranges, ","));
}

std::string script_of(const JobArray& array)
{
  if (array.options.find_first_of("\r\n") != std::string::npos) {
    throw InputError("--slurm-options", in_quotes(array.options) + " is not one line");
  }
  std::string script = "#!/bin/sh\n";
  if (!array.options.empty()) script += fmt::format("#SBATCH {}\n", array.options);
  script += fmt::format("cd {} || exit\n", in_shell_quotes(fs::current_path().string()));
  script += fmt::format("first=$((SLURM_ARRAY_TASK_ID * {}))\n", array.runs_per_task);
  script += "exec";
  for (const auto& word : array.command) script += " " + in_shell_quotes(word);
  return script + fmt::format(" \"$first-$((first + {}))\"\n", array.runs_per_task - 1);
}

QueuedTasks queued_tasks_from(const std::string& printed)
{
  QueuedTasks queued;
  std::map<std::size_t, std::size_t> newest_end;  // the job of each task in `ends`
  std::istringstream lines(printed);
  std::string job;
  std::string task_text;
  std::string state;
  while (lines >> job >> task_text >> state) {
    const auto task = number_in(task_text);
    if (!task) continue;  // a job of this name that is not an array is not ours
    if (!final_states.contains(state)) {
      queued.jobs.insert(job);
      queued.active.insert(*task);
    } else if (const std::size_t number = number_in(job).value_or(0); number >= newest_end[*task]) {
      newest_end[*task] = number;
      queued.ends[*task] = state;
    }
  }
  return queued;
}

std::size_t most_array_tasks()
{
  constexpr std::size_t most = 1000;
  const ChildResult shown_settings = run_slurm({"scontrol", "show", "config"});
  if (shown_settings.failure) throw EnvironmentError("scontrol: " + complaint_of(shown_settings));
  std::istringstream words(shown_settings.output);
  for (std::string word; words >> word;) {
    if (word != "MaxArraySize") continue;
    std::string value;
    words >> word >> value;
    const auto size = number_in(value);
    if (size && *size > 0) return std::min(*size, most);
  }
  throw EnvironmentError("scontrol: this Slurm has no job arrays; its MaxArraySize is not above 0");
}

std::optional<QueuedTasks> tasks_in_queue(const std::string& name)
{
  const ChildResult result =
      run_slurm({"squeue", "--noheader", "--array", "--states=all", "--name=" + name, "--format=%F %K %T"});
  if (result.failure) return std::nullopt;
  return queued_tasks_from(result.output);
}

std::string submit(const JobArray& array, const std::set<std::size_t>& tasks)
{
  write_file_atomically(array.script(), script_of(array));
  // Options on the command line take precedence over those in the script.
  const ChildResult result =
      run_slurm({"sbatch", "--parsable", "--array=" + array_text(tasks), "--job-name=" + array.name,
                 "--output=" + as_output_name(array.folder) + "/%a.log", array.script().string()});
  if (result.failure) {
    const std::string complaint = complaint_of(result);
    if (array.options.empty()) throw EnvironmentError(complaint);
    throw InputError("--slurm-options", complaint);
  }
  std::string job = result.output.substr(0, result.output.find_first_of(";\n"));
  if (number_in(job)) return job;
  throw EnvironmentError(
      fmt::format("sbatch gave no job id, but {}", in_quotes(joined_lines(result.output + result.errors))));
}

}  // namespace isobar::cli

#include "cli/sweep/sweep_on_slurm.hpp"

#include "cli/sweep/slurm.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

namespace isobar::cli {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Time until the next look at the queue: a twentieth of the time waited so far. So no look is late by much, and the
/// controller has little to do.
Clock::duration interval_after(Clock::duration waited)
{
  return std::clamp<Clock::duration>(waited / 20, 1s, 30s);
}

void pause(Clock::duration time)
{
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
    throw_if_interrupted();
    std::this_thread::sleep_for(50ms);
  }
}

/// The files of a folder, or none when it is gone: another process may finish the same sweep.
std::vector<fs::path> files_in(const fs::path& folder)
{
  std::vector<fs::path> files;
  std::error_code gone;
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    files.push_back(entry->path());
  }
  return files;
}

/// Removes a folder with its files; another process may remove it at the same time.
void remove_folder(const fs::path& folder)
{
  std::error_code fault;
  fs::remove_all(folder, fault);
  if (fault && fault != std::errc::no_such_file_or_directory) {
    throw fs::filesystem_error("cannot remove", folder, fault);
  }
}

fs::path row_file(const SweepRuns& runs, const fs::path& folder, const std::string& definition)
{
  return folder / (fingerprint(definition) + runs.sweep().kind().row_ending);
}

/// "; FILE ends with LINE" for a task's log, or "" when there is none.
std::string end_of_log(const fs::path& log)
{
  constexpr std::size_t longest = 300;
  std::error_code unknown;
  if (!fs::is_regular_file(log, unknown)) return "";
  std::string text = read_file(log);
  while (text.ends_with('\n')) text.pop_back();
  if (text.empty()) return "";
  const std::string line = text.substr(text.rfind('\n') + 1);
  return fmt::format("; {} ends with \"{}\"", log.string(), shown(line, longest));
}

/// One start of `isobar sweep --slurm`.
class ArraySweep {
 public:
  ArraySweep(const SweepRuns& runs, results::SweepStore& store, const SlurmSweep& sweep)
      : runs_(runs), store_(store), retry_failed_(sweep.retry_failed)
  {
    all_rows_ = fs::absolute(sweep.database).lexically_normal();
    all_rows_ += ".slurm";
    // Equal for the same runs in the same database, so that a later start finds its tasks in the queue.
    std::string identity = all_rows_.string();
    for (std::size_t run = 0; run < runs.sweep().runs(); ++run) identity += "\n" + runs.definition(run);
    array_.name = "isobar-" + fingerprint(identity);
    array_.folder = all_rows_ / array_.name;
    array_.options = sweep.sbatch_options;
    array_.command = {fs::read_symlink("/proc/self/exe").string(), "sweep", fs::absolute(runs.sweep().file()).string()};
    array_.command.insert(array_.command.end(), sweep.task_options.begin(), sweep.task_options.end());
    array_.command.insert(array_.command.end(), {"--rows", array_.folder.string(), "--runs"});
  }

  void make()
  {
    gather();
    gathered_.clear();  // --retry-failed replaces rows that failed before
    if (!missing().empty()) make_missing();
    remove_folder(array_.folder);
    std::error_code not_empty;  // other sweeps of this database may use it
    fs::remove(all_rows_, not_empty);
  }

 private:
  void make_missing()
  {
    array_.runs_per_task = runs_per_task(runs_.sweep().runs(), most_array_tasks());
    fs::create_directories(array_.folder);
    try {
      submit_missing_tasks();
      wait_for_rows();
    } catch (const Interrupted&) {
      if (!jobs_.empty()) {
        const std::string ids = fmt::format("{}", fmt::join(jobs_, " "));
        say(fmt::format("job {} continues; the same command takes its rows, scancel {} ends it", ids, ids));
      }
      throw;
    }
  }

  void submit_missing_tasks()
  {
    const auto queued = tasks_in_queue(array_.name);
    if (!queued) throw EnvironmentError("squeue does not answer; nothing was submitted");
    jobs_ = queued->jobs;
    gather();  // rows of tasks that have left the queue since the first look
    std::set<std::size_t> tasks = tasks_with(missing(), array_.runs_per_task);
    for (const auto task : queued->active) tasks.erase(task);
    if (!queued->active.empty()) {
      say(fmt::format("job {} of an earlier start continues, {} tasks", fmt::join(jobs_, " "), queued->active.size()));
    }
    if (tasks.empty()) return;
    const std::string job = submit(array_, tasks);
    jobs_.insert(job);
    say(fmt::format("submitted job {}, {} tasks", job, tasks.size()));
  }

  void wait_for_rows()
  {
    constexpr int most_silences = 10;  // consecutive; squeue itself retries for a while before it gives up
    const std::size_t missing_before = missing().size();
    ProgressLine progress("sweep", missing_before);
    const auto began = Clock::now();
    for (int silences = 0; silences < most_silences;) {
      pause(interval_after(Clock::now() - began));
      // In this order: a task that has left the queue has written its rows.
      const auto queued = tasks_in_queue(array_.name);
      gather();
      const auto left = missing();
      progress.done(missing_before - left.size());
      if (left.empty()) return;
      silences = queued ? 0 : silences + 1;
      if (!queued) continue;
      jobs_ = queued->jobs;
      const auto tasks = tasks_with(left, array_.runs_per_task);
      const auto is_active = [&queued](std::size_t task) { return queued->active.contains(task); };
      if (std::none_of(tasks.begin(), tasks.end(), is_active)) fail(left.size(), tasks, queued->ends);
    }
    throw EnvironmentError(fmt::format("squeue does not answer; job {} continues, and the same command takes its rows",
                                       fmt::join(jobs_, " ")));
  }

  [[noreturn]] void fail(std::size_t left, const std::set<std::size_t>& tasks,
                         const std::map<std::size_t, std::string>& ends) const
  {
    constexpr std::size_t most_named = 5;
    std::vector<std::string> named;
    for (const auto task : tasks) {
      if (named.size() == most_named) {
        named.emplace_back("…");
        break;
      }
      const auto end = ends.find(task);
      named.push_back(end == ends.end() ? fmt::format("{}", task) : fmt::format("{} ({})", task, end->second));
    }
    throw EnvironmentError(fmt::format(
        "{} of {} runs have no row, since their tasks ended without one: {}{}; the same command submits them again",
        left, runs_.sweep().runs(), fmt::join(named, ", "), end_of_log(array_.log_of_task(*tasks.begin()))));
  }

  /// Moves the rows that tasks have written into the store, also those of other sweeps of this kind in this database.
  void gather()
  {
    for (const auto& folder : files_in(all_rows_)) {
      for (const auto& file : files_in(folder)) {
        if (file.extension() == runs_.sweep().kind().row_ending) take(file);
      }
    }
  }

  void take(const fs::path& file)
  {
    std::string text;
    try {
      text = read_file(file);
    } catch (const InputError&) {
      if (!fs::exists(file)) return;  // another process has taken it
      throw;
    }
    const auto row = results::sweep_row_from_json(text, file.string(), runs_.sweep().kind());
    store_.put(row);
    gathered_.insert(row.definition);
    fs::remove(file);
  }

  std::vector<std::size_t> missing() const
  {
    auto missing = runs_.missing_in(store_, retry_failed_);
    std::erase_if(missing, [this](std::size_t run) { return gathered_.contains(runs_.definition(run)); });
    return missing;
  }

  const SweepRuns& runs_;
  results::SweepStore& store_;
  bool retry_failed_;
  fs::path all_rows_;  // folder of this database, with one for each sweep
  JobArray array_;
  std::set<std::string> jobs_;
  std::set<std::string> gathered_;  // definitions of the rows taken by this start
};

std::vector<std::size_t> runs_in(const std::string& range, std::size_t runs)
{
  std::size_t first = 0;
  std::size_t last = 0;
  const char* const end = range.data() + range.size();
  const auto [dash, fault] = std::from_chars(range.data(), end, first);
  const bool has_dash = fault == std::errc{} && dash != end && *dash == '-';
  const auto [rest, second_fault] = has_dash ? std::from_chars(dash + 1, end, last) : std::from_chars(end, end, last);
  if (second_fault != std::errc{} || rest != end || first > last) {
    throw InputError("--runs", in_quotes(range) + " is not a range of runs, such as 0-9");
  }
  if (first >= runs) throw InputError("--runs", fmt::format("{}; the sweep has runs 0 to {}", range, runs - 1));
  std::vector<std::size_t> found;
  for (std::size_t run = first; run <= std::min(last, runs - 1); ++run) found.push_back(run);
  return found;
}

}  // namespace

void make_on_slurm(const SweepRuns& runs, results::SweepStore& store, const SlurmSweep& sweep)
{
  ArraySweep(runs, store, sweep).make();
}

void make_into_folder(const SweepRuns& runs, const std::string& range, const fs::path& folder, std::size_t jobs,
                      Seconds row_time_limit)
{
  if (!fs::is_directory(folder)) throw InputError("--rows", shown(folder.string()) + " is not a folder");
  auto to_make = runs_in(range, runs.sweep().runs());
  std::erase_if(to_make, [&](std::size_t run) { return fs::exists(row_file(runs, folder, runs.definition(run))); });
  runs.make(to_make, jobs, row_time_limit, [&](const results::SweepRow& row) {
    write_file_atomically(row_file(runs, folder, row.definition), sweep_row_to_json(row, runs.sweep().kind()) + "\n");
  });
}

}  // namespace isobar::cli

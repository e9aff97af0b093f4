#include "cli/sweep/sweep_runs.hpp"

#include "allocators/registry.hpp"
#include "cli/generators.hpp"
#include "cli/goal_options.hpp"
#include "cli/platform_files.hpp"
#include "cli/sweep/planned_runs.hpp"
#include "cli/sweep/scheduled_runs.hpp"
#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/progress_line.hpp"
#include "results/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

namespace isobar::cli {

namespace {

using results::SweepRow;

/// Time limit of loading one platform for its hash.
constexpr Seconds longest_load(600);

results::Sweep read_sweep(const std::string& file)
{
  results::SweepVocabulary vocabulary{generator_names(), options_of_generator, allocators::require_allocator,
                                      [](const std::string& schedule) { schedule_of(schedule); }};
  return results::Sweep::from_text(read_file(file), file, vocabulary);
}

}  // namespace

std::map<std::string, std::string> texts_of(const std::vector<DocumentNode::Member>& members)
{
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : members) texts[key] = value.scalar;
  return texts;
}

bool is_file(const std::string& name)
{
  std::error_code unknown;
  return std::filesystem::is_regular_file(name, unknown);
}

void FaultsOfRuns::add(int line, const std::string& key, const std::string& what)
{
  if (seen_.insert(fmt::format("{}:{}: {}", line, key, what)).second) faults_.add(line, key, what);
}

void FaultsOfRuns::add(const results::Sweep& sweep, std::size_t run, const std::string& group,
                       const std::string& otherwise, const InputError& fault)
{
  const std::string text = fault.what();
  const auto colon = std::min(text.find(": "), text.size());
  std::string option = text.substr(0, colon);
  option.erase(0, option.find_first_not_of('-'));
  const auto* value = sweep.value(run, group + option);
  if (value == nullptr) value = sweep.value(run, otherwise);
  add(value->line, group + option, text.substr(std::min(colon + 2, text.size())));
}

void FaultsOfRuns::add(int line, const InputError& fault)
{
  const std::string text = fault.what();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    if (seen_.insert(one).second) faults_.add(line, InputError(one));
    begin = end + 1;
  }
}

std::unique_ptr<SweepRuns> read_sweep_runs(const std::string& file)
{
  results::Sweep sweep = read_sweep(file);
  if (sweep.schedules_jobs()) return std::make_unique<ScheduledRuns>(std::move(sweep));
  return std::make_unique<PlannedRuns>(std::move(sweep));
}

PlatformSource SweepRuns::platform_source(std::size_t run) const
{
  PlatformSource source;
  source.name = sweep_.text(run, "platform");
  if (!sweep_.generates_platforms()) {
    source.devices = sweep_.text(run, "platform.devices");
    return source;
  }
  source.options = texts_of(sweep_.members(run, "platform"));
  const auto known = options_of_generator(source.name);
  const bool draws = std::find(known.begin(), known.end(), "seed") != known.end();
  if (draws) source.options.try_emplace("seed", std::to_string(sweep_.seed(run)));
  return source;
}

void SweepRuns::check_platform(std::size_t run, FaultsOfRuns& faults)
{
  const PlatformSource source = platform_source(run);
  if (platform_hashes_.contains(source)) return;
  std::string& hash = platform_hashes_[source];
  if (sweep_.generates_platforms()) {
    try {
      hash = fingerprint(generate_platform(source.name, source.options));
    } catch (const InputError& fault) {
      faults.add(sweep_, run, "platform.", "platform", fault);
    }
    return;
  }
  for (const auto* parameter : {"platform", "platform.devices"}) {
    const auto* file = sweep_.value(run, parameter);
    if (file == nullptr || is_file(file->scalar)) continue;
    faults.add(file->line, parameter,
               in_quotes(file->scalar) + ": no such file; names are read from the working folder");
  }
}

void SweepRuns::hash_platform_files()
{
  if (sweep_.generates_platforms()) return;
  std::vector<std::function<std::string()>> work;
  for (const auto& entry : platform_hashes_) {
    const PlatformSource& source = entry.first;
    work.emplace_back([source] { return platform_files_json(source.name, source.devices); });
  }
  const auto answers = run_in_children(work, std::thread::hardware_concurrency(), longest_load);
  auto answer = answers.begin();
  for (auto& [source, hash] : platform_hashes_) {
    PlatformFiles found{"refused " + fingerprint(read_file(source.name)), {source.name, source.devices}};
    if (!answer->failure) found = platform_files_from(answer->output);
    hash = std::move(found.hash);
    platform_files_.insert(platform_files_.end(), found.files.begin(), found.files.end());
    ++answer;
  }
}

std::vector<std::string> SweepRuns::inputs() const
{
  std::vector<std::string> files = {sweep_.file()};
  files.insert(files.end(), platform_files_.begin(), platform_files_.end());
  return files;
}

std::map<std::string, std::string> SweepRuns::common_definition(std::size_t run) const
{
  return {{"isobar", ISOBAR_VERSION},
          {"simgrid", sim::simgrid_version()},
          {"platform", platform_hashes_.at(platform_source(run))}};
}

std::vector<std::size_t> SweepRuns::missing_in(const results::SweepStore& store, bool failed) const
{
  std::vector<std::size_t> missing;
  for (std::size_t run = 0; run < sweep_.runs(); ++run) {
    throw_if_interrupted();
    const auto row = store.row(definition(run));
    if (!row || (failed && row->outcome == results::failed_outcome)) missing.push_back(run);
  }
  return missing;
}

std::vector<results::SweepResult> SweepRuns::results_in(const results::SweepStore& store) const
{
  std::map<std::size_t, SweepRow> rows;
  for (std::size_t run = 0; run < sweep_.runs(); ++run) {
    throw_if_interrupted();
    if (auto row = store.row(definition(run))) rows.emplace(run, std::move(*row));
  }
  return results_of(std::move(rows));
}

sim::Platform SweepRuns::load_platform_of(const PlatformSource& source) const
{
  return sweep_.generates_platforms()
             ? sim::Platform::from_text(generate_platform(source.name, source.options), source.name)
             : load_platform(source.name, source.devices);
}

void SweepRuns::make(const std::vector<std::size_t>& runs, std::size_t jobs, Seconds row_time_limit,
                     const OnRow& on_row) const
{
  std::set<PlatformSource> sources;
  for (const auto run : runs) sources.insert(platform_source(run));
  std::optional<sim::Platform> shared;
  try {
    if (sources.size() == 1) shared = load_platform_of(*sources.begin());
  } catch (const InputError&) {
    // Each run reports it.
  }
  const results::RunKind& kind = sweep_.kind();
  std::vector<std::function<std::string()>> work;
  for (const auto run : runs) work.emplace_back([&, run] { return sweep_row_to_json(row_of(run, shared), kind); });
  ProgressLine progress("sweep", runs.size());
  std::size_t ended = 0;
  run_in_children(work, jobs, {row_time_limit, "--row-time-limit"}, [&](std::size_t index, const ChildResult& result) {
    if (!result.failure) {
      on_row(results::sweep_row_from_json(result.output, "a child process", kind));
    } else {
      on_row(results::failed_row(definition(runs[index]), shown(result.failure->text, 500), kind));
    }
    progress.done(++ended);
  });
}

}  // namespace isobar::cli

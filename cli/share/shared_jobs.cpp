#include "cli/share/shared_jobs.hpp"

#include "allocators/registry.hpp"
#include "cli/inputs.hpp"
#include "cli/planning/global_batch.hpp"
#include "cli/planning/planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/progress_line.hpp"
#include "core/compute/as_trained.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

namespace isobar::cli {

namespace {

/// The two files of a JOB; no plan for a workload alone.
struct JobFiles {
  std::string plan;
  std::string workload;
};

JobFiles files_of(const std::string& job)
{
  const auto colon = job.find(':');
  JobFiles files{colon == std::string::npos ? "" : job.substr(0, colon),
                 colon == std::string::npos ? job : job.substr(colon + 1)};
  if ((colon != std::string::npos && files.plan.empty()) || files.workload.empty()) {
    throw InputError("JOB", in_quotes(job) + " is neither PLAN.json:WORKLOAD.yaml nor WORKLOAD.yaml");
  }
  return files;
}

/// A name for each job: that of its workload's file, with a number where several have it.
std::vector<std::string> names_of(const std::vector<JobFiles>& jobs)
{
  constexpr std::size_t longest = 48;
  std::vector<std::string> stems;
  for (const auto& job : jobs) {
    std::string stem = std::filesystem::path(job.workload).stem().string().substr(0, longest);
    for (char& c : stem) {
      const bool is_kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
      if (!is_kept) c = '_';
    }
    stems.push_back(stem.empty() ? "job" : stem);
  }
  std::set<std::string> taken(stems.begin(), stems.end());
  std::vector<std::string> names;
  for (const auto& stem : stems) {
    std::string name = stem;
    if (std::ranges::find(names, name) != names.end() || std::ranges::count(stems, stem) > 1) {
      for (std::size_t number = 1; taken.contains(name); ++number) name = fmt::format("{}-{}", stem, number);
      taken.insert(name);
    }
    names.push_back(name);
  }
  return names;
}

constexpr char no_plan = '!';  // before the reason

InputOptions input_of(const ShareOptions& options, const std::string& workload)
{
  InputOptions input;
  input.platform = options.platform;
  input.devices = options.devices;
  input.workload = workload;
  return input;
}

/// Plans a workload alone, as `isobar plan` does with --without `left_out`, which the inputs lack already. Returns the
/// plan's text, or why there is none.
std::string planned(const ShareOptions& options, const Inputs& inputs, const allocators::SearchLimits& limits,
                    const std::vector<std::string>& left_out = {})
{
  const Goal goal = options.goal.goal(options.objective, options.allocator);
  Plan found = make_best_plan(inputs, options.allocator, goal, limits, batch_splits(options.goal, goal, inputs));
  found.without = left_out;
  return found.stages.empty() ? no_plan + reason_of(found) : plan_to_json(found);
}

/// The same on a group of the devices of a platform that was loaded already; `searches` of these share a time limit.
std::string planned_on(const ShareOptions& options, const sim::Platform& platform, const std::string& workload,
                       const std::vector<std::size_t>& group, std::size_t searches)
{
  std::vector<std::string> left_out;
  const auto& devices = platform.cluster().devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!std::ranges::binary_search(group, i)) left_out.push_back(devices[i].name);
  }
  Plan none;
  none.without = left_out;
  Inputs inputs = load(input_of(options, workload), platform, none, workload);
  recompute_layers(inputs.workload, options.goal.recompute_for(options.allocator));
  auto limits = options.goal.limits(options.allocator);
  if (limits.time_limit) *limits.time_limit = *limits.time_limit / static_cast<double>(searches);
  return planned(options, inputs, limits, left_out);
}

void check_options(const ShareOptions& options)
{
  if (options.jobs.size() < 2) {
    throw InputError("JOB", fmt::format("{}; give two jobs or more", options.jobs.empty() ? "no job" : "one job"));
  }
  if (options.jobs.size() > most_mix_jobs) {
    throw InputError(
        "JOB", fmt::format("{} jobs; a mix has at most {}, --profiles takes more", options.jobs.size(), most_mix_jobs));
  }
  allocators::require_allocator(options.allocator);
  options.goal.check_search({options.allocator});
}

}  // namespace

SharedJobs::SharedJobs(const ShareOptions& options)
    : inputs_(load_mix(options.platform, options.devices, "", mix_of(options), "isobar share"))
{
}

Mix SharedJobs::mix_of(const ShareOptions& options)
{
  check_options(options);
  std::vector<JobFiles> files;
  std::vector<std::string> read = {options.platform, options.devices};
  for (const auto& job : options.jobs) {
    files.push_back(files_of(job));
    read.insert(read.end(), {files.back().plan, files.back().workload});
  }
  const auto names = names_of(files);
  Mix mix;
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::string& plan = files[i].plan;
    // Equal jobs have one plan.
    for (std::size_t j = 0; j < i && plan.empty(); ++j) {
      if (names_.contains(files[j].plan) && files[j].workload == files[i].workload) plan = files[j].plan;
    }
    if (plan.empty()) plan = make_plan_of(options, files[i].workload, names[i], read);
    mix.jobs.push_back({names[i], plan, files[i].workload, Seconds(0)});
    mix.turns.push_back({i, 1});
  }
  return mix;
}

std::string SharedJobs::make_plan_of(const ShareOptions& options, const std::string& workload, const std::string& name,
                                     const std::vector<std::string>& read)
{
  const bool makes_mix = options.group.empty();
  if (makes_mix && options.output == standard_output) {
    throw InputError("-o", "plans of workloads alone lie next to the mix; name a file");
  }
  // A process loads one platform.
  constexpr Seconds no_limit(1e9);
  const auto work = [&] {
    const Inputs inputs = load(input_of(options, workload), options.goal.recompute_for(options.allocator));
    return planned(options, inputs, options.goal.limits(options.allocator));
  };
  const std::string found = run_in_child(work, no_limit).output_or_throw();
  if (found.front() == no_plan) {
    throw NoPlan(
        fmt::format("{}: allocator {} finds no plan: {}", on_one_line(workload), options.allocator, found.substr(1)));
  }
  return write_plan(options, found, name, read);
}

std::string SharedJobs::write_plan(const ShareOptions& options, const std::string& plan, const std::string& name,
                                   const std::vector<std::string>& read)
{
  const bool is_kept = options.group.empty() && !options.output.empty();
  const std::filesystem::path output(is_kept ? options.output : folder_.file("mix.json"));
  const std::string file_name = fmt::format("{}.{}.plan.json", output.stem().string(), name);
  std::string file = (output.parent_path() / file_name).string();
  refuse_overwriting(read, {options.output, file});
  write_file_atomically(file, plan);
  names_.emplace(file, file_name);
  if (is_kept) made_.push_back(file);
  return file;
}

std::vector<std::vector<std::string>> SharedJobs::plan_on(const ShareOptions& options,
                                                          const std::vector<std::size_t>& jobs,
                                                          const std::vector<std::vector<std::size_t>>& groups,
                                                          std::size_t parallel)
{
  std::vector<std::function<std::string()>> work;
  for (const std::size_t job : jobs) {
    for (const auto& group : groups) {
      work.emplace_back([this, &options, &group, job, searches = jobs.size() * groups.size()] {
        return planned_on(options, inputs_.platform, inputs_.mix.jobs[job].workload, group, searches);
      });
    }
  }
  constexpr Seconds no_limit(1e9);
  ProgressLine progress("plans", work.size());
  std::size_t ended = 0;
  const auto results =
      run_in_children(work, parallel, no_limit, [&](std::size_t, const ChildResult&) { progress.done(++ended); });
  std::vector<std::vector<std::string>> files(jobs.size(), std::vector<std::string>(groups.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    // An allocator may refuse a group, such as one without routes; the job then runs on others.
    if (results[i].failure && results[i].failure->kind == Failure::Kind::BadInput) continue;
    if (results[i].output_or_throw().front() == no_plan) continue;
    std::string& file = files[i / groups.size()][i % groups.size()];
    file = folder_.file(fmt::format("{}.{}.json", jobs[i / groups.size()], i % groups.size()));
    write_file_atomically(file, results[i].output);
  }
  return files;
}

std::string SharedJobs::keep(const ShareOptions& options, const std::string& plan, const std::string& job)
{
  if (const auto kept = kept_.find(plan); kept != kept_.end()) return kept->second;
  std::string file =
      write_plan(options, read_file(plan), fmt::format("{}.part{}", job, kept_.size() + 1), inputs_.files());
  kept_.emplace(plan, file);
  return file;
}

Mix SharedJobs::as_written(Mix mix) const
{
  for (auto& job : mix.jobs) {
    if (const auto made = names_.find(job.plan); made != names_.end()) job.plan = made->second;
  }
  return mix;
}

JobProfile profile_of(const MixJob& job, const MixJobInputs& inputs, const SoloRun& alone, const Cluster& cluster)
{
  const auto largest = [&](const std::map<std::string, Seconds>& times) {
    Seconds most;
    for (const auto& [name, time] : times) most = std::max(most, time);
    return std::min(most, alone.step_time);
  };
  JobProfile profile;
  profile.name = job.name;
  profile.steps = 1;
  profile.step = {alone.step_time, {Seconds(0), largest(alone.compute), largest(alone.transfer)}};
  const auto devices = devices_of(inputs.plan);
  profile.devices = devices.size();
  const compute::AsTrained trained(inputs.plan, inputs.workload, cluster);
  const auto program = schedules::make_program(inputs.plan, trained.workload(), trained.cluster());
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Bytes resident = program->resident(rank, Tier::Device);
    profile.resident = std::max(profile.resident, resident);
    const Bytes peak = inputs.plan.predicted ? inputs.plan.predicted->peak_memory.at(devices[rank]) : resident;
    profile.activations = std::max(profile.activations, peak - resident);
  }
  return profile;
}

}  // namespace isobar::cli

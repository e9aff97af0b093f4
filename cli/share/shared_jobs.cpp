#include "cli/share/shared_jobs.hpp"

#include "allocators/registry.hpp"
#include "cli/global_batch.hpp"
#include "cli/inputs.hpp"
#include "cli/planning.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
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

/// Plans a workload alone, as `isobar plan` does.
Plan planned(const ShareOptions& options, const std::string& workload)
{
  const Goal goal = options.goal.goal(options.objective, options.allocator);
  InputOptions input;
  input.platform = options.platform;
  input.devices = options.devices;
  input.workload = workload;
  const Inputs inputs = load(input, options.goal.recompute_for(options.allocator));
  return make_best_plan(inputs, options.allocator, goal, options.goal.limits(options.allocator),
                        batch_splits(options.goal, goal, inputs));
}

}  // namespace

SharedJobs::SharedJobs(const ShareOptions& options)
    : inputs_([&] {
        if (options.jobs.size() < 2) {
          throw InputError("JOB", fmt::format("{} alone shares nothing; give two jobs or more",
                                              options.jobs.empty() ? "no job" : "one job"));
        }
        if (options.jobs.size() > most_mix_jobs) {
          throw InputError("JOB", fmt::format("{} jobs; a mix has at most {}, --profiles takes more",
                                              options.jobs.size(), most_mix_jobs));
        }
        std::vector<JobFiles> files;
        for (const auto& job : options.jobs) files.push_back(files_of(job));
        const auto names = names_of(files);
        const bool is_kept = !options.output.empty() && options.output != standard_output && options.group.empty();
        const std::filesystem::path output(options.output);
        const bool has_all_plans = std::ranges::none_of(files, [](const JobFiles& job) { return job.plan.empty(); });
        if (options.output == standard_output && options.group.empty() && !has_all_plans) {
          throw InputError("-o", "plans of workloads alone lie next to the mix; name a file");
        }
        allocators::require_allocator(options.allocator);
        options.goal.check_search({options.allocator});
        std::map<std::string, std::string> planned_of;  // by workload: equal jobs have one plan
        Mix mix;
        for (std::size_t i = 0; i < files.size(); ++i) {
          std::string plan = files[i].plan;
          if (plan.empty()) {
            std::string& known = planned_of[files[i].workload];
            if (known.empty()) {
              const Plan found = planned(options, files[i].workload);
              if (found.stages.empty()) {
                throw NoPlan(fmt::format("{}: allocator {} finds no plan: {}", on_one_line(files[i].workload),
                                         options.allocator, reason_of(found)));
              }
              const std::string name =
                  fmt::format("{}.{}.plan.json", is_kept ? output.stem().string() : std::string("mix"), names[i]);
              known = is_kept ? (output.parent_path() / name).string() : folder_.file(name);
              write_file_atomically(known, plan_to_json(found));
              if (is_kept) made_.push_back(known);
              names_.emplace(known, name);
            }
            plan = known;
          }
          mix.jobs.push_back({names[i], plan, files[i].workload, Seconds(0)});
          mix.turns.push_back({i, 1});
        }
        return load_mix(options.platform, options.devices, mix, "isobar share");
      }())
{
}

Mix SharedJobs::as_written(Mix mix) const
{
  for (auto& job : mix.jobs) {
    if (const auto made = names_.find(job.plan); made != names_.end()) job.plan = made->second;
  }
  return mix;
}

JobProfile profile_of(const MixJob& job, const MixJobInputs& inputs, const SoloRun& alone)
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
  const auto program = schedules::make_program(inputs.plan, inputs.workload);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Bytes resident = program->resident(rank, Tier::Device);
    profile.resident = std::max(profile.resident, resident);
    const Bytes peak = inputs.plan.predicted ? inputs.plan.predicted->peak_memory.at(devices[rank]) : resident;
    profile.activations = std::max(profile.activations, peak - resident);
  }
  return profile;
}

}  // namespace isobar::cli

#include "allocators/mix/job_grouping.hpp"
#include "cli/output_file.hpp"
#include "cli/platform_files.hpp"
#include "cli/share/share_options.hpp"
#include "cli/share/shared_jobs.hpp"
#include "core/base/clock.hpp"
#include "core/base/command_options.hpp"
#include "core/base/standard_streams.hpp"
#include "core/jobs/grouping_checker.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <thread>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

GroupSize size_from(const ShareOptions& options)
{
  if (options.group.empty()) {
    throw InputError("--profiles", "goes with --group pairs, triples or auto: steps alone make no mix");
  }
  const auto size = group_size_from_name(options.group);
  if (!size) {
    const auto nearest = nearest_word(options.group, group_size_names());
    throw InputError("--group",
                     fmt::format("{} is none of {}{}", in_quotes(options.group), fmt::join(group_size_names(), ", "),
                                 nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
  if (options.at_once && *size != GroupSize::Pairs) throw InputError("--at-once", "goes with --group pairs");
  return *size;
}

/// Jobs, and the devices that they would share.
struct Profiles {
  std::vector<JobProfile> jobs;
  std::size_t devices = 0;
  Bytes memory;  ///< of the smallest
};

Profiles on_devices(std::vector<JobProfile> jobs, const Cluster& cluster)
{
  return {std::move(jobs), cluster.devices.size(),
          std::ranges::min_element(cluster.devices, {}, &Device::memory)->memory};
}

/// The jobs of --profiles, or those of the command line, each run alone.
Profiles profiles_of(const ShareOptions& options)
{
  if (!options.profiles.empty()) {
    if (!options.jobs.empty()) throw InputError("--profiles", "takes the place of the JOBs; give one of both");
    auto jobs = read_job_profiles(options.profiles);
    const auto platform = load_platform(options.platform, options.devices);
    print_notes(platform);
    return on_devices(std::move(jobs), platform.cluster());
  }
  const SharedJobs jobs(options);
  const auto alone = simulate_alone(jobs.inputs(), options.rounds, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<JobProfile> profiles;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    profiles.push_back(
        profile_of(jobs.inputs().mix.jobs[i], jobs.inputs().jobs[i], alone[i], jobs.inputs().platform.cluster()));
  }
  return on_devices(std::move(profiles), jobs.inputs().platform.cluster());
}

/// Refuses jobs that have no set of devices, and more pairs at once than there are sets.
void check_devices(const std::vector<JobProfile>& jobs, const ShareOptions& options, std::size_t devices)
{
  std::map<std::size_t, std::size_t> count_of;
  for (const auto& job : jobs) {
    if (job.devices > devices) {
      throw InputError(options.platform, fmt::format("has {}; job {} takes {}", counted(devices, "device"),
                                                     in_quotes(job.name), job.devices));
    }
    ++count_of[job.devices];
  }
  if (std::ranges::all_of(count_of, [](const auto& same) { return same.second < 2; })) {
    throw InputError(options.profiles.empty() ? "JOB" : options.profiles,
                     "no two jobs have the same number of devices, so none can share them");
  }
  if (!options.at_once) return;
  std::size_t taken = 0;
  for (const auto& [number, count] : count_of) {
    if (count % 2 != 0) {
      throw InputError("--at-once", fmt::format("{} with {}: pairs of all take an even number", counted(count, "job"),
                                                counted(number, "device")));
    }
    taken += count / 2 * number;
  }
  if (taken > devices) {
    throw InputError("--at-once", fmt::format("all pairs at once take {}; {} has {}", counted(taken, "device"),
                                              on_one_line(options.platform), devices));
  }
}

/// The share of the most time that could be saved.
double saved_share(const Grouping& grouping, Seconds total)
{
  const Seconds most = grouping.serial - grouping.bound;
  return most > Seconds(0) ? (grouping.serial - total) / most : 1;
}

std::string grouping_text(const Grouping& grouping, Seconds took)
{
  std::string text =
      fmt::format("{} in {}{}: {} in {:.2f} s\n", counted(grouping.jobs.size(), "job"), name_of(grouping.size),
                  grouping.at_once ? ", all at once" : "", counted(grouping.groups.size(), "group"), took.value);
  const double gap = grouping.total > Seconds(0) ? (grouping.total - grouping.bound) / grouping.total : 0;
  text += fmt::format("{} {:.6g} s, alone {:.6g} s, no {} below {:.6g} s ({}), gap {:.2f} %\n",
                      grouping.at_once ? "sum of rounds" : "total", grouping.total.value, grouping.serial.value,
                      grouping.at_once ? "sum with this longest round" : fmt::format("{}", name_of(grouping.size)),
                      grouping.bound.value, grouping.proofs.empty() ? "sums by resource" : "certificate", 100 * gap);
  if (grouping.at_once) {
    text += fmt::format("longest round {:.6g} s, the least of all (certificate)\n", grouping.longest.value);
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [jobs, round, time] : grouping.groups) {
    std::vector<std::string> names;
    Seconds alone;
    for (const std::size_t job : jobs) {
      const auto& profile = grouping.jobs[job];
      names.push_back(shown(profile.name));
      alone += profile.step.alone * (grouping.at_once ? 1.0 : static_cast<double>(profile.steps));
    }
    rows.push_back({fmt::format("{}", fmt::join(names, " ")), fmt::format("{}", grouping.jobs[jobs.front()].devices),
                    isobar::text_of(round), isobar::text_of(time), fmt::format("{:.3f}", alone / time)});
  }
  text += "\n" + results::table_of({"group", "devices", "round", "time", "speed-up"}, rows);
  rows = {{"this", fmt::format("{:.6g}", grouping.total.value), fmt::format("{:.6g}", grouping.longest.value),
           fmt::format("{:.3f}", saved_share(grouping, grouping.total))}};
  for (const auto& [rule, total, longest] : grouping.baselines) {
    rows.push_back({rule, fmt::format("{:.6g}", total.value), fmt::format("{:.6g}", longest.value),
                    fmt::format("{:.3f}", saved_share(grouping, total))});
  }
  return text + "\n" + results::table_of({"rule", "total, s", "longest round, s", "saved / most"}, rows);
}

}  // namespace

ExitCode choose_groups(const ShareOptions& options)
{
  const GroupSize size = size_from(options);
  refuse_overwriting({options.platform, options.profiles}, {options.output});
  OutputFile output(options.output);
  Profiles profiles;
  try {
    profiles = profiles_of(options);
  } catch (const NoPlan& none) {
    say(none.what());
    return ExitCode::Infeasible;
  }
  const auto& [jobs, devices, memory] = profiles;
  check_devices(jobs, options, devices);
  const auto begin = Clock::now();
  const auto grouping = allocators::choose_groups(jobs, {size, options.at_once, memory, options.goal.seed});
  const Seconds took = time_since(begin);
  if (!grouping) {
    say(fmt::format("no pairs of all jobs fit in memory together; a device has {}", isobar::text_of(memory)));
    return ExitCode::Infeasible;
  }
  ensure(faults_of(*grouping).empty(), "a grouping that its checker refuses");
  const std::string json = grouping_to_json(*grouping);
  output.write(json);
  if (!output.is_standard_output()) print(options.json ? json : grouping_text(*grouping, took));
  return ExitCode::Done;
}

}  // namespace isobar::cli

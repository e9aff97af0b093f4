#include "cli/share/joint_placement.hpp"

#include "allocators/mix/placements.hpp"
#include "core/compute/as_trained.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace isobar::cli {

namespace {

constexpr std::size_t most_plans = 64;
constexpr std::size_t most_placements = 6;  // to simulate

/// The devices such that those that belong together follow each other.
std::vector<std::size_t> neighbours_in_order(const Cluster& cluster)
{
  std::vector<std::size_t> order(cluster.devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t index) {
    const Device& device = cluster.devices[index];
    const std::size_t machine = device.machine ? device.machine->machine : 0;
    return std::make_tuple(std::cref(device.site), machine, std::cref(device.type), -device.speed.value, index);
  };
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

/// The groups of devices to plan on, without that of all devices, each ascending.
std::vector<std::vector<std::size_t>> groups_of(const Cluster& cluster, std::size_t most)
{
  const auto order = neighbours_in_order(cluster);
  auto groups = allocators::device_groups(order.size(), most);
  groups.erase(groups.begin());
  for (auto& group : groups) {
    for (auto& device : group) device = order[device];
    std::ranges::sort(group);
  }
  return groups;
}

/// A job with one of its plans.
struct JobChoice {
  MixJob job;
  MixJobInputs inputs;
  SoloRun alone;
};

/// Numbers for devices, links and memories.
class Resources {
 public:
  explicit Resources(const Cluster& cluster) : cluster_(cluster)
  {
    for (const auto& device : cluster.devices) {
      devices_.emplace(device.name, devices_.size());
      places_.emplace(device.name, memory_.size());
      memory_.push_back(device.memory);
    }
    for (const auto& machine : cluster.machines) {
      places_.emplace(machine.name, memory_.size());
      memory_.push_back(machine.memory);
    }
  }

  allocators::PlacedStep step_of(const JobChoice& choice)
  {
    allocators::PlacedStep step;
    step.alone = choice.alone.step_time;
    for (const auto& [device, time] : choice.alone.compute) {
      // Another host that computes counts as a link does: the least device time is that of devices.
      const auto known = devices_.find(device);
      step.busy.emplace_back(known != devices_.end() ? known->second : other("host " + device), time);
    }
    for (const auto& [link, time] : choice.alone.transfer) step.busy.emplace_back(other("link " + link), time);
    const Plan& plan = choice.inputs.plan;
    if (!plan.predicted) return step;
    const compute::AsTrained trained(plan, choice.inputs.workload, cluster_);
    const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
    const auto devices = devices_of(plan);
    std::map<std::string, Bytes> residents;
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      residents[devices[rank]] = program->resident(rank, Tier::Device);
    }
    for (const auto& [name, peak] : plan.predicted->peak_memory) {
      const auto place = places_.find(name);
      if (place == places_.end()) continue;
      const Bytes resident = residents.contains(name) ? residents[name] : peak;
      step.memory.push_back({place->second, resident, peak - resident});
    }
    return step;
  }

  std::size_t devices() const { return devices_.size(); }
  std::size_t count() const { return devices_.size() + others_.size(); }
  const std::vector<Bytes>& memory() const { return memory_; }

 private:
  std::size_t other(const std::string& name)
  {
    return others_.emplace(name, devices_.size() + others_.size()).first->second;
  }

  const Cluster& cluster_;
  std::map<std::string, std::size_t> devices_;
  std::map<std::string, std::size_t> others_;
  std::map<std::string, std::size_t> places_;
  std::vector<Bytes> memory_;
};

/// The choices of each kind of job, the given one first. Of plans on the same devices, the one with the shortest step.
std::vector<std::vector<JobChoice>> choices_of(const ShareOptions& options, SharedJobs& jobs, const PlacedJobs& given,
                                               const std::vector<std::size_t>& first_of_kind,
                                               const std::vector<std::vector<std::size_t>>& groups,
                                               std::size_t parallel)
{
  std::vector<std::vector<JobChoice>> choices;
  std::vector<std::size_t> planned;
  std::vector<std::size_t> kind_of_planned;
  for (std::size_t kind = 0; kind < first_of_kind.size(); ++kind) {
    const std::size_t job = first_of_kind[kind];
    choices.push_back({{given.mix.jobs[job], given.jobs[job], given.alone[job]}});
    if (!jobs.is_planned(job)) continue;
    planned.push_back(job);
    kind_of_planned.push_back(kind);
  }
  const auto files = jobs.plan_on(options, planned, groups, parallel);
  MixInputs all = jobs.inputs();
  all.mix.jobs.clear();
  all.mix.turns.clear();
  all.jobs.clear();
  std::vector<std::size_t> kinds;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    for (const auto& file : files[i]) {
      if (file.empty()) continue;
      MixJob job = given.mix.jobs[planned[i]];
      job.plan = file;
      all.jobs.push_back(load_mix_job(all, job));
      all.mix.turns.push_back({all.mix.jobs.size(), 1});
      all.mix.jobs.push_back(std::move(job));
      kinds.push_back(kind_of_planned[i]);
    }
  }
  if (all.jobs.empty()) return choices;
  const auto alone = simulate_alone(all, options.rounds, parallel);
  for (std::size_t i = 0; i < all.jobs.size(); ++i) {
    auto& own = choices[kinds[i]];
    JobChoice choice{all.mix.jobs[i], std::move(all.jobs[i]), alone[i]};
    const auto names_of = [](const JobChoice& of) {
      const auto names = devices_of(of.inputs.plan);
      return std::set<std::string>(names.begin(), names.end());
    };
    const auto same =
        std::ranges::find_if(own, [&](const JobChoice& other) { return names_of(other) == names_of(choice); });
    if (same == own.end()) {
      own.push_back(std::move(choice));
    } else if (choice.alone.step_time < same->alone.step_time && same != own.begin()) {
      *same = std::move(choice);
    }
  }
  return choices;
}

}  // namespace

JointPlacing place_together(const ShareOptions& options, SharedJobs& jobs, const PlacedJobs& given,
                            std::size_t parallel)
{
  JointPlacing found;
  found.bound = given.bound.time;
  for (const auto& run : given.alone) found.serial += run.step_time;
  std::vector<std::size_t> first_of_kind;
  std::vector<std::size_t> kind_of;
  std::size_t planned_kinds = 0;
  for (std::size_t job = 0; job < given.mix.jobs.size(); ++job) {
    const auto same = std::ranges::find_if(first_of_kind, [&](std::size_t other) {
      return given.mix.jobs[other].plan == given.mix.jobs[job].plan &&
             given.mix.jobs[other].workload == given.mix.jobs[job].workload;
    });
    kind_of.push_back(static_cast<std::size_t>(same - first_of_kind.begin()));
    if (same != first_of_kind.end()) continue;
    first_of_kind.push_back(job);
    if (jobs.is_planned(job)) ++planned_kinds;
  }
  if (planned_kinds == 0) return found;
  const Cluster& cluster = jobs.inputs().platform.cluster();
  // The whole counts among the groups, and has its plan already.
  const auto groups = groups_of(cluster, most_plans / planned_kinds + 1);
  if (groups.empty()) return found;
  found.groups = groups.size() + 1;
  // All subsets are at most 65 groups.
  found.has_all_groups = cluster.devices.size() < 10 && found.groups + 1 == std::size_t{1} << cluster.devices.size();

  auto choices = choices_of(options, jobs, given, first_of_kind, groups, parallel);
  found.serial = Seconds(0);
  for (const std::size_t kind : kind_of) {
    const auto& own = choices[kind];
    found.serial +=
        std::ranges::min_element(own, {}, [](const auto& choice) { return choice.alone.step_time; })->alone.step_time;
  }
  Resources resources(cluster);
  allocators::PlacementProblem problem;
  std::vector<std::vector<allocators::PlacedStep>> steps;
  for (const auto& own : choices) {
    steps.emplace_back();
    for (const auto& choice : own) steps.back().push_back(resources.step_of(choice));
  }
  for (const std::size_t kind : kind_of) problem.jobs.push_back(steps[kind]);
  problem.kinds = kind_of;
  problem.devices = resources.devices();
  problem.resources = resources.count();
  problem.memory = resources.memory();
  // The given placement is one of them, and may be the best.
  const auto together = allocators::best_placements(problem, most_placements + 1);
  found.bound = std::min(found.bound, together.bound);
  for (const auto& placement : together.best) {
    if (found.placements.size() == most_placements) break;
    if (std::ranges::all_of(placement.choices, [](std::size_t choice) { return choice == 0; })) continue;
    PlacedJobs placed;
    MixInputs inputs = jobs.inputs();
    inputs.jobs.clear();
    placed.mix = given.mix;
    for (std::size_t job = 0; job < kind_of.size(); ++job) {
      const JobChoice& choice = choices[kind_of[job]][placement.choices[job]];
      placed.mix.jobs[job].plan = choice.job.plan;
      placed.jobs.push_back(choice.inputs);
      placed.alone.push_back(choice.alone);
    }
    inputs.mix = placed.mix;
    inputs.jobs = placed.jobs;
    placed.bound = bound_of(inputs, placed.alone);
    found.placements.push_back(std::move(placed));
  }
  return found;
}

}  // namespace isobar::cli

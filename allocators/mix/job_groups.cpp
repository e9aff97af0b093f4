#include "allocators/mix/job_groups.hpp"

#include "allocators/mix/merges.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

namespace isobar::allocators {

namespace {

constexpr double weight_scale = 1e6;          // gains as whole microseconds, or millionths
constexpr double largest_weight = 1ll << 50;  // see MatchingEdge

struct Group {
  std::vector<std::size_t> jobs;
  std::vector<JobStepTimes> steps;
  Seconds round;
  double steps_left = 0;  // of the job that ends first
};

class Grouping {
 public:
  Grouping(const std::vector<Candidate>& jobs, const GroupRules& rules) : jobs_(jobs), rules_(rules)
  {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      groups_.push_back({{i}, {jobs[i].step}, shared_round_time({jobs[i].step}, rules.form), jobs[i].steps});
      demand_ += jobs[i].devices;
    }
  }

  std::vector<std::vector<std::size_t>> until(std::size_t devices)
  {
    while (demand_ > devices) {
      const auto merges = merges_of_all();
      if (merges.empty()) break;
      for (const auto& [first, second, gain] : merges) {
        if (demand_ <= devices) break;
        demand_ -= jobs_[groups_[second].jobs.front()].devices;
        groups_[first] = merged(groups_[first], groups_[second]);
        groups_[second].jobs.clear();
      }
      groups_.erase(
          std::remove_if(groups_.begin(), groups_.end(), [](const Group& group) { return group.jobs.empty(); }),
          groups_.end());
    }
    std::vector<std::vector<std::size_t>> found;
    for (auto& group : groups_) found.push_back(std::move(group.jobs));
    return found;
  }

 private:
  Group merged(const Group& a, const Group& b) const
  {
    Group both = a;
    both.jobs.insert(both.jobs.end(), b.jobs.begin(), b.jobs.end());
    both.steps.insert(both.steps.end(), b.steps.begin(), b.steps.end());
    both.round = shared_round_time(both.steps, rules_.form);
    both.steps_left = std::min(a.steps_left, b.steps_left);
    return both;
  }

  /// The weight of merging two groups; none where it saves nothing.
  std::optional<std::int64_t> gain_of(const Group& a, const Group& b) const
  {
    if (a.jobs.size() + b.jobs.size() > rules_.largest) return std::nullopt;
    const Group both = merged(a, b);
    if (rules_.memory) {
      std::vector<Candidate> together;
      for (const std::size_t job : both.jobs) together.push_back(jobs_[job]);
      if (!fit_together(together, rules_.memory)) return std::nullopt;
    }
    const Seconds saved = a.round + b.round - both.round;
    if (saved <= Seconds(0)) return std::nullopt;
    double gain = both.steps_left * saved.value;
    if (rules_.gain == GroupGain::Efficiency) {
      Seconds busy;
      for (const auto& step : both.steps) {
        for (const Seconds part : step.busy) busy += part;
      }
      gain = busy / both.round / static_cast<double>(step_resources.size());
    }
    return static_cast<std::int64_t>(std::min(std::round(gain * weight_scale), largest_weight));
  }

  std::vector<Merge> merges_of_all() const
  {
    std::vector<std::size_t> devices;
    for (const auto& group : groups_) devices.push_back(jobs_[group.jobs.front()].devices);
    const auto gain = [&](std::size_t i, std::size_t j) { return gain_of(groups_[i], groups_[j]); };
    return best_merges(devices, all_merges(devices, gain)).merges;
  }

  const std::vector<Candidate>& jobs_;
  const GroupRules& rules_;
  std::vector<Group> groups_;
  std::size_t demand_ = 0;  // devices that all groups ask for
};

}  // namespace

bool fit_together(const std::vector<Candidate>& jobs, const std::optional<Bytes>& memory)
{
  Bytes resident;
  Bytes activations;
  for (const auto& job : jobs) {
    resident += job.resident;
    activations = std::max(activations, job.activations);
  }
  return !memory || resident + activations <= *memory;
}

std::vector<std::vector<std::size_t>> group_jobs(const std::vector<Candidate>& jobs, std::size_t devices,
                                                 const GroupRules& rules)
{
  return Grouping(jobs, rules).until(devices);
}

}  // namespace isobar::allocators

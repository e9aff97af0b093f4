#include "core/jobs/grouping_checker.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

namespace isobar {

namespace {

using Jobs = std::vector<std::size_t>;

constexpr double tolerance = 1e-9;

bool are_equal(double a, double b)
{
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

class GroupingChecker {
 public:
  explicit GroupingChecker(const Grouping& grouping) : grouping_(grouping)
  {
    for (std::size_t job = 0; job < grouping.jobs.size(); ++job) by_devices_[grouping.jobs[job].devices].push_back(job);
  }

  std::vector<std::string> faults()
  {
    check_groups();
    if (!faults_.empty()) return faults_;  // sums of wrong groups say nothing
    check_sums();
    check_bound();
    for (std::size_t i = 0; i < grouping_.baselines.size(); ++i) {
      const auto& baseline = grouping_.baselines[i];
      const double claimed = grouping_.at_once ? baseline.longest.value : baseline.total.value;
      const double bound = grouping_.at_once ? grouping_.longest.value : grouping_.bound.value;
      if (claimed < bound * (1 - tolerance)) {
        add(fmt::format("baselines[{}]: {} s is below the bound, {} s", i, claimed, bound));
      }
    }
    return faults_;
  }

 private:
  void add(std::string fault)
  {
    constexpr std::size_t most = 20;
    if (faults_.size() < most) faults_.push_back(std::move(fault));
  }

  const JobProfile& job(std::size_t index) const { return grouping_.jobs[index]; }

  /// A step of each job: no resource can do its work in less, and no job its step.
  double round_of(const Jobs& jobs) const
  {
    double longest = 0;
    std::array<double, step_resources.size()> busy{};
    for (const std::size_t index : jobs) {
      longest = std::max(longest, job(index).step.alone.value);
      for (std::size_t i = 0; i < busy.size(); ++i) busy[i] += job(index).step.busy[i].value;
    }
    return jobs.size() == 1 ? longest : std::max(longest, *std::ranges::max_element(busy));
  }

  /// Until the last job ends. From the end of a job on, the others have rounds of their own.
  double time_of(Jobs jobs) const
  {
    double time = 0;
    std::uint64_t made = 0;
    while (!jobs.empty()) {
      std::uint64_t fewest = job(jobs.front()).steps;
      for (const std::size_t index : jobs) fewest = std::min(fewest, job(index).steps);
      time += static_cast<double>(fewest - made) * round_of(jobs);
      made = fewest;
      std::erase_if(jobs, [&](std::size_t index) { return job(index).steps == fewest; });
    }
    return time;
  }

  /// What the jobs need at a time on a device: all residents, and the activations of the one whose turn it is.
  bool fit(const Jobs& jobs) const
  {
    double resident = 0;
    double activations = 0;
    for (const std::size_t index : jobs) {
      resident += job(index).resident.value;
      activations = std::max(activations, job(index).activations.value);
    }
    return !grouping_.memory || resident + activations <= grouping_.memory->value;
  }

  double alone(std::size_t index) const
  {
    return job(index).step.alone.value * (grouping_.at_once ? 1.0 : static_cast<double>(job(index).steps));
  }

  void check_groups()
  {
    std::vector<bool> is_grouped(grouping_.jobs.size());
    for (std::size_t i = 0; i < grouping_.groups.size(); ++i) {
      const auto& group = grouping_.groups[i];
      const auto place = fmt::format("groups[{}]", i);
      if (group.jobs.empty()) add(place + ".jobs: none");
      if (group.jobs.size() > most_jobs_of(grouping_.size)) {
        add(fmt::format("{}.jobs: {}; {} has at most {}", place, group.jobs.size(), name_of(grouping_.size),
                        most_jobs_of(grouping_.size)));
      }
      if (grouping_.at_once && group.jobs.size() != 2) {
        add(fmt::format("{}.jobs: {}; all jobs at once are in pairs", place, group.jobs.size()));
      }
      for (const std::size_t index : group.jobs) {
        if (is_grouped[index]) add(fmt::format("{}.jobs: {} is grouped twice", place, shown(job(index).name)));
        is_grouped[index] = true;
        if (job(index).devices != job(group.jobs.front()).devices) {
          add(fmt::format("{}.jobs: {} and {} have different numbers of devices", place,
                          shown(job(group.jobs.front()).name), shown(job(index).name)));
        }
      }
      if (group.jobs.size() > 1 && !fit(group.jobs)) add(place + ".jobs: do not fit in memory together");
      if (group.jobs.empty()) continue;
      compare(place + ".round_s", group.round, round_of(group.jobs));
      compare(place + ".time_s", group.time, grouping_.at_once ? round_of(group.jobs) : time_of(group.jobs));
    }
    for (std::size_t index = 0; index < is_grouped.size(); ++index) {
      if (!is_grouped[index]) add(fmt::format("groups: {} is in none", shown(job(index).name)));
    }
  }

  void compare(const std::string& key, Seconds claimed, double found)
  {
    if (!are_equal(claimed.value, found)) add(fmt::format("{}: claims {}; it is {}", key, claimed.value, found));
  }

  void check_sums()
  {
    double total = 0;
    double longest = 0;
    for (const auto& group : grouping_.groups) {
      total += group.time.value;
      longest = std::max(longest, group.round.value);
    }
    compare("total_s", grouping_.total, total);
    compare("longest_round_s", grouping_.longest, longest);
    double serial = 0;
    for (std::size_t index = 0; index < grouping_.jobs.size(); ++index) serial += alone(index);
    compare("serial_s", grouping_.serial, serial);
  }

  void check_bound()
  {
    double bound = 0;
    std::size_t proven = 0;
    for (const auto& [devices, members] : by_devices_) {
      const auto proof = std::ranges::find(grouping_.proofs, devices, &PairingProof::devices);
      double least = grouping_.at_once ? 0 : least_time(members);
      if (proof != grouping_.proofs.end()) {
        ++proven;
        const auto place = fmt::format("certificates[{}]", proof - grouping_.proofs.begin());
        const auto saved = most_saved(members, *proof, place);
        if (!saved) return;
        double serial = 0;
        for (const std::size_t index : members) serial += alone(index);
        least = std::max(least, serial - *saved);
        if (grouping_.at_once) check_barrier(members, *proof, place);
      } else if (grouping_.at_once) {
        add(fmt::format("certificates: none of the jobs with {} devices", devices));
      }
      bound += least;
    }
    if (proven != grouping_.proofs.size()) add("certificates: two for a number of devices, or one for no job");
    if (!grouping_.proofs.empty() && grouping_.size != GroupSize::Pairs) {
      add(fmt::format("certificates: prove a bound of pairs, not of {}", name_of(grouping_.size)));
    }
    if (grouping_.bound.value > bound * (1 + tolerance)) {
      add(fmt::format("bound_s: claims {}; what is proven is {}", grouping_.bound.value, bound));
    }
  }

  /// No grouping takes less: each resource does all work, and each job all its steps.
  double least_time(const Jobs& members) const
  {
    double least = 0;
    std::array<double, step_resources.size()> busy{};
    for (const std::size_t index : members) {
      least = std::max(least, alone(index));
      for (std::size_t i = 0; i < busy.size(); ++i) {
        busy[i] += static_cast<double>(job(index).steps) * job(index).step.busy[i].value;
      }
    }
    return std::max(least, *std::ranges::max_element(busy));
  }

  /// The time, in seconds, that no pairs of these jobs save more than; none if the proof is false.
  std::optional<double> most_saved(const Jobs& members, const PairingProof& proof, const std::string& place)
  {
    const auto refuse = [&](const std::string& fault) {
      add(place + fault);
      return std::nullopt;
    };
    if (proof.duals.size() != members.size()) {
      return refuse(fmt::format(".duals: {} for {} jobs", proof.duals.size(), members.size()));
    }
    if (proof.unit.value <= 0) return refuse(".unit_s: is not above 0");
    std::uint64_t sum = std::accumulate(proof.duals.begin(), proof.duals.end(), std::uint64_t{0});
    std::vector<std::set<std::size_t>> sets_of(members.size());
    for (std::size_t i = 0; i < proof.odd_sets.size(); ++i) {
      const auto& [inside, dual] = proof.odd_sets[i];
      for (const std::size_t number : inside) {
        if (!sets_of[number].insert(i).second) return refuse(fmt::format(".odd_sets[{}].jobs: lists one twice", i));
      }
      if (inside.size() % 2 == 0) return refuse(fmt::format(".odd_sets[{}].jobs: {} is not odd", i, inside.size()));
      sum += dual * (inside.size() / 2);
    }
    if (sum != 4 * proof.weight) {
      return refuse(fmt::format(".duals: sum to {}; four times the weight is {}", sum, 4 * proof.weight));
    }
    const double longest = longest_round_with(proof.devices);
    for (std::size_t u = 0; u < members.size(); ++u) {
      for (std::size_t v = u + 1; v < members.size(); ++v) {
        const Jobs both = {members[u], members[v]};
        if (!fit(both) || (grouping_.at_once && round_of(both) > longest * (1 + tolerance))) continue;
        const double together = alone(members[u]) + alone(members[v]);
        const double weight = together - (grouping_.at_once ? round_of(both) : time_of(both));
        std::uint64_t covered = proof.duals[u] + proof.duals[v];
        for (const std::size_t set : sets_of[u]) {
          if (sets_of[v].contains(set)) covered += proof.odd_sets[set].dual;
        }
        const double cover = (static_cast<double>(covered) / 4 - static_cast<double>(proof.bonus)) * proof.unit.value;
        if (cover < weight - tolerance * together) {
          return refuse(fmt::format(".duals: those of {} and {} cover {} of the {} s that they save",
                                    shown(job(both[0]).name), shown(job(both[1]).name), cover, weight));
        }
      }
    }
    const std::uint64_t pairs = members.size() / 2;
    const double bonus = grouping_.at_once ? static_cast<double>(pairs) * static_cast<double>(proof.bonus) : 0;
    return (static_cast<double>(proof.weight) - bonus) * proof.unit.value;
  }

  double longest_round_with(std::size_t devices) const
  {
    double longest = 0;
    for (const auto& group : grouping_.groups) {
      if (job(group.jobs.front()).devices == devices) longest = std::max(longest, group.round.value);
    }
    return longest;
  }

  /// Checks that no pairs of all these jobs have a shorter longest round.
  void check_barrier(const Jobs& members, const PairingProof& proof, const std::string& place)
  {
    const double longest = longest_round_with(proof.devices);
    std::vector<bool> is_out(members.size());
    for (const std::size_t number : proof.barrier) is_out[number] = true;
    const auto left_out = static_cast<std::size_t>(std::ranges::count(is_out, true));
    std::vector<bool> is_seen = is_out;
    std::size_t odd = 0;
    for (std::size_t first = 0; first < members.size(); ++first) {
      if (is_seen[first]) continue;
      Jobs reached = {first};
      is_seen[first] = true;
      for (std::size_t i = 0; i < reached.size(); ++i) {
        for (std::size_t other = 0; other < members.size(); ++other) {
          const Jobs both = {members[reached[i]], members[other]};
          if (is_seen[other] || !fit(both) || round_of(both) >= longest * (1 - tolerance)) continue;
          is_seen[other] = true;
          reached.push_back(other);
        }
      }
      odd += reached.size() % 2;
    }
    if (odd <= left_out) {
      add(
          fmt::format("{}.barrier: leaves {} odd components, not more than its {} jobs: a shorter longest round is not "
                      "ruled out",
                      place, odd, left_out));
    }
  }

  const Grouping& grouping_;
  std::map<std::size_t, Jobs> by_devices_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> faults_of(const Grouping& grouping)
{
  return GroupingChecker(grouping).faults();
}

}  // namespace isobar

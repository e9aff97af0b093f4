#include "allocators/mix/job_grouping.hpp"

#include "allocators/mix/job_groups.hpp"
#include "allocators/mix/merges.hpp"
#include "allocators/mix/shared_round.hpp"
#include "core/base/pcg64.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

namespace isobar::allocators {

namespace {

using Members = std::vector<std::size_t>;

constexpr double nanosecond = 1e-9;
constexpr double no_saving = 1e-12;  // of the time of both: less is rounding

/// A pair of jobs, or of groups, and the time that it saves.
struct Saving {
  std::size_t first = 0;
  std::size_t second = 0;
  Seconds time;
  Seconds round;
};

class Chooser {
 public:
  Chooser(const std::vector<JobProfile>& jobs, const GroupingGoal& goal) : jobs_(jobs), goal_(goal)
  {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      candidates_.push_back(
          {jobs[i].devices, jobs[i].step, static_cast<double>(jobs[i].steps), jobs[i].resident, jobs[i].activations});
      by_devices_[jobs[i].devices].push_back(i);
    }
  }

  std::optional<Grouping> choose()
  {
    grouping_.size = goal_.size;
    grouping_.at_once = goal_.at_once;
    grouping_.memory = goal_.memory;
    grouping_.jobs = jobs_;
    std::vector<Members> groups;
    for (const auto& [devices, members] : by_devices_) {
      grouping_.serial += serial_of(members);
      if (goal_.at_once) {
        auto pairs = pairs_at_once(members);
        if (pairs.empty()) return std::nullopt;
        groups.insert(groups.end(), pairs.begin(), pairs.end());
      } else {
        grouping_.bound += least_group_time(profiles_of(members));
      }
    }
    if (!goal_.at_once) groups = merged_groups();
    std::ranges::sort(groups);
    for (const auto& members : groups) {
      const Seconds round = round_of(members);
      grouping_.groups.push_back({members, round, time_of(members)});
      grouping_.total += grouping_.groups.back().time;
      grouping_.longest = std::max(grouping_.longest, round);
    }
    grouping_.bound = std::min(grouping_.bound, grouping_.total);  // they may differ by rounding
    add_baseline("greedy", greedy_groups());
    add_baseline("most unlike first", unlike_groups());
    const GroupRules muri{GroupGain::Efficiency, RoundForm::Overlap, most_jobs_of(goal_.size), goal_.memory};
    add_baseline("Muri's rule", group_jobs(candidates_, 0, muri));
    add_baseline("random", random_groups());
    return std::move(grouping_);
  }

 private:
  std::vector<JobProfile> profiles_of(const Members& members) const
  {
    std::vector<JobProfile> profiles;
    for (const std::size_t job : members) profiles.push_back(jobs_[job]);
    return profiles;
  }

  Seconds round_of(const Members& members) const
  {
    std::vector<JobStepTimes> steps;
    for (const std::size_t job : members) steps.push_back(jobs_[job].step);
    return shared_round_time(steps, RoundForm::Overlap);
  }

  Seconds time_of(const Members& members) const
  {
    return goal_.at_once ? round_of(members) : group_time(profiles_of(members));
  }

  Seconds serial_of(const Members& members) const
  {
    Seconds sum;
    for (const std::size_t job : members) {
      sum += jobs_[job].step.alone * (goal_.at_once ? 1.0 : static_cast<double>(jobs_[job].steps));
    }
    return sum;
  }

  bool can_share(const Members& members) const
  {
    std::vector<Candidate> together;
    for (const std::size_t job : members) together.push_back(candidates_[job]);
    return members.size() <= most_jobs_of(goal_.size) && fit_together(together, goal_.memory);
  }

  static Members joined(const Members& a, const Members& b)
  {
    Members both = a;
    both.insert(both.end(), b.begin(), b.end());
    std::ranges::sort(both);
    return both;
  }

  /// What pairs of groups with equal devices save.
  std::vector<Saving> savings_of(const std::vector<Members>& groups) const
  {
    std::vector<Seconds> times;
    for (const auto& members : groups) times.push_back(time_of(members));
    std::vector<Saving> savings;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (std::size_t j = i + 1; j < groups.size(); ++j) {
        if (jobs_[groups[i].front()].devices != jobs_[groups[j].front()].devices) continue;
        const Members both = joined(groups[i], groups[j]);
        if (!can_share(both)) continue;
        const Seconds apart = times[i] + times[j];
        const Seconds saved = apart - time_of(both);
        if (saved > no_saving * apart || goal_.at_once)
          savings.push_back({i, j, std::max(saved, Seconds(0)), round_of(both)});
      }
    }
    return savings;
  }

  /// Units of 1 ns, or of as many more as keep four times the sum of a matching's weights below 2^53. With a bonus for
  /// each pair, that is larger than what all pairs save.
  Seconds unit_of(const std::vector<Saving>& savings, std::size_t vertices) const
  {
    Seconds most;
    for (const auto& saving : savings) most = std::max(most, saving.time);
    const auto half = static_cast<double>(vertices) / 2 + 1;
    const double largest = std::ldexp(1.0, 50) / half / (goal_.at_once ? half + 1 : 1);
    double unit = nanosecond;
    while (most.value / unit > largest) unit *= 2;
    return Seconds(unit);
  }

  static std::int64_t weight_of(Seconds time, Seconds unit)
  {
    return static_cast<std::int64_t>(std::ceil(time / unit));
  }

  void add_proof(std::size_t devices, Seconds unit, std::int64_t bonus, const Matching& matching, Members barrier)
  {
    PairingProof proof;
    proof.devices = devices;
    proof.unit = unit;
    proof.bonus = static_cast<std::uint64_t>(bonus);
    proof.weight = static_cast<std::uint64_t>(matching.weight);
    proof.duals.assign(matching.duals.begin(), matching.duals.end());
    for (const auto& set : matching.odd_sets) {
      proof.odd_sets.push_back({set.vertices, static_cast<std::uint64_t>(set.dual)});
    }
    proof.barrier = std::move(barrier);
    grouping_.proofs.push_back(std::move(proof));
  }

  std::vector<Members> singles() const
  {
    std::vector<Members> groups;
    for (std::size_t job = 0; job < jobs_.size(); ++job) groups.push_back({job});
    return groups;
  }

  std::vector<std::size_t> devices_of(const std::vector<Members>& groups) const
  {
    std::vector<std::size_t> devices;
    for (const auto& members : groups) devices.push_back(jobs_[members.front()].devices);
    return devices;
  }

  static std::vector<Members> apply(std::vector<Members> groups, const std::vector<Merge>& merges)
  {
    for (const auto& [first, second, gain] : merges) {
      groups[first] = joined(groups[first], groups[second]);
      groups[second].clear();
    }
    std::erase_if(groups, [](const Members& members) { return members.empty(); });
    return groups;
  }

  std::vector<Merge> merges_of(const std::vector<Members>& groups, Seconds& unit) const
  {
    const auto savings = savings_of(groups);
    unit = unit_of(savings, groups.size());
    std::vector<Merge> merges;
    for (const auto& saving : savings) merges.push_back({saving.first, saving.second, weight_of(saving.time, unit)});
    return merges;
  }

  /// Matched, and the groups matched again.
  std::vector<Members> merged_groups()
  {
    auto groups = singles();
    for (bool is_first = true;; is_first = false) {
      Seconds unit;
      const auto merges = merges_of(groups, unit);
      if (is_first) pairs_of_all_ = merges;
      if (goal_.size != GroupSize::Pairs && merges.empty()) return groups;
      const auto best = best_merges(devices_of(groups), merges);
      groups = apply(std::move(groups), best.merges);
      if (goal_.size != GroupSize::Pairs) continue;
      prove_pairs(best, unit);
      return groups;
    }
  }

  void prove_pairs(const BestMerges& best, Seconds unit)
  {
    Seconds bound;
    for (const auto& [devices, parts, matching] : best.matchings) {
      add_proof(devices, unit, 0, matching, {});
      const Seconds proven = serial_of(parts) - unit * static_cast<double>(matching.weight);
      bound += std::max(proven, least_group_time(profiles_of(parts)));
    }
    grouping_.bound = bound;
  }

  /// Pairs of all of these jobs; none if there is no way.
  std::vector<Members> pairs_at_once(const Members& members)
  {
    std::vector<Members> parts;
    for (const std::size_t job : members) parts.push_back({job});
    const auto savings = savings_of(parts);
    std::vector<Seconds> rounds;
    for (const auto& saving : savings) rounds.push_back(saving.round);
    std::ranges::sort(rounds);
    rounds.erase(std::unique(rounds.begin(), rounds.end()), rounds.end());
    const auto up_to = [&](std::size_t count) {  // edges with one of the first rounds
      std::vector<MatchingEdge> edges;
      for (const auto& saving : savings) {
        if (count > 0 && saving.round <= rounds[count - 1]) edges.push_back({saving.first, saving.second, 1});
      }
      return largest_matching(members.size(), edges);
    };
    const auto is_perfect = [](const LargestMatching& matching) {
      return std::ranges::find(matching.mates, Matching::unmatched) == matching.mates.end();
    };
    if (!is_perfect(up_to(rounds.size()))) return {};
    std::size_t too_few = 0;
    std::size_t enough = rounds.size();
    while (enough - too_few > 1) {
      const std::size_t middle = (too_few + enough) / 2;
      (is_perfect(up_to(middle)) ? enough : too_few) = middle;
    }
    return prove_at_once(members, savings, rounds[enough - 1], up_to(too_few).barrier);
  }

  /// The pairs with the least sum of rounds among those with none above `longest`. A bonus for each pair makes every
  /// matching of the largest weight perfect.
  std::vector<Members> prove_at_once(const Members& members, const std::vector<Saving>& savings, Seconds longest,
                                     Members barrier)
  {
    const Seconds unit = unit_of(savings, members.size());
    std::int64_t most = 0;
    for (const auto& saving : savings) most = std::max(most, weight_of(saving.time, unit));
    const std::int64_t bonus = static_cast<std::int64_t>(members.size() / 2) * most + 1;
    std::vector<MatchingEdge> edges;
    for (const auto& saving : savings) {
      if (saving.round <= longest) edges.push_back({saving.first, saving.second, bonus + weight_of(saving.time, unit)});
    }
    const auto matching = maximum_weight_matching(members.size(), edges);
    ensure(fault_of_matching(members.size(), edges, matching).empty(), "a matching whose proof is wrong");
    add_proof(jobs_[members.front()].devices, unit, bonus, matching, std::move(barrier));
    const auto saved = matching.weight - bonus * static_cast<std::int64_t>(members.size() / 2);
    grouping_.bound += serial_of(members) - unit * static_cast<double>(saved);
    std::vector<Members> pairs;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (matching.mates[i] > i) pairs.push_back({members[i], members[matching.mates[i]]});
    }
    return pairs;
  }

  void add_baseline(const char* rule, const std::vector<Members>& groups)
  {
    GroupingBaseline baseline{rule, Seconds(0), Seconds(0)};
    for (const auto& members : groups) {
      if (goal_.at_once && members.size() != 2) return;  // the rule leaves jobs without a partner
      baseline.total += time_of(members);
      baseline.longest = std::max(baseline.longest, round_of(members));
    }
    grouping_.baselines.push_back(std::move(baseline));
  }

  std::vector<Members> greedy_groups() const
  {
    auto groups = singles();
    auto merges = pairs_of_all_;
    for (Seconds unit;; merges = merges_of(groups, unit)) {
      if (merges.empty() && groups.size() == jobs_.size()) merges = merges_of(groups, unit);
      if (merges.empty()) return groups;
      const auto chosen = greedy_merges(groups.size(), std::move(merges));
      groups = apply(std::move(groups), chosen);
      if (goal_.size == GroupSize::Pairs) return groups;
    }
  }

  /// Groups of the jobs of each number of devices, in an order of them. A job that does not fit begins a group.
  std::vector<Members> in_order(const std::map<std::size_t, Members>& orders) const
  {
    std::vector<Members> groups;
    for (const auto& [devices, order] : orders) {
      groups.emplace_back();
      for (const std::size_t job : order) {
        if (!groups.back().empty() && !can_share(joined(groups.back(), {job}))) groups.emplace_back();
        groups.back().push_back(job);
      }
    }
    return groups;
  }

  std::vector<Members> unlike_groups() const
  {
    const auto share = [&](std::size_t job) { return jobs_[job].step.busy[1] / jobs_[job].step.alone; };
    auto orders = by_devices_;
    for (auto& [devices, members] : orders) {
      std::stable_sort(members.begin(), members.end(), [&](auto a, auto b) { return share(a) > share(b); });
      std::deque<std::size_t> left(members.begin(), members.end());
      for (std::size_t i = 0; i < members.size(); ++i) {
        members[i] = i % 2 == 0 ? left.front() : left.back();
        i % 2 == 0 ? left.pop_front() : left.pop_back();
      }
    }
    return in_order(orders);
  }

  std::vector<Members> random_groups() const
  {
    Pcg64 random(goal_.seed);
    auto orders = by_devices_;
    for (auto& [devices, members] : orders) {
      for (std::size_t i = members.size(); i > 1; --i) {
        std::swap(members[i - 1], members[random.below(static_cast<std::uint32_t>(i))]);
      }
    }
    return in_order(orders);
  }

  const std::vector<JobProfile>& jobs_;
  const GroupingGoal& goal_;
  std::vector<Candidate> candidates_;
  std::map<std::size_t, Members> by_devices_;
  std::vector<Merge> pairs_of_all_;  // of single jobs; none yet for pairs at once
  Grouping grouping_;
};

}  // namespace

Seconds group_time(std::vector<JobProfile> jobs)
{
  std::ranges::stable_sort(jobs, {}, &JobProfile::steps);
  Seconds time;
  double made = 0;
  while (!jobs.empty()) {
    std::vector<JobStepTimes> steps;
    for (const auto& job : jobs) steps.push_back(job.step);
    const auto fewest = static_cast<double>(jobs.front().steps);
    time += shared_round_time(steps, RoundForm::Overlap) * (fewest - made);
    made = fewest;
    std::erase_if(jobs, [&](const JobProfile& job) { return static_cast<double>(job.steps) <= made; });
  }
  return time;
}

Seconds least_group_time(const std::vector<JobProfile>& jobs)
{
  Seconds least;
  std::array<Seconds, step_resources.size()> busy{};
  for (const auto& job : jobs) {
    const auto steps = static_cast<double>(job.steps);
    least = std::max(least, job.step.alone * steps);
    for (std::size_t i = 0; i < busy.size(); ++i) busy[i] += job.step.busy[i] * steps;
  }
  return std::max(least, *std::ranges::max_element(busy));
}

std::optional<Grouping> choose_groups(const std::vector<JobProfile>& jobs, const GroupingGoal& goal)
{
  ensure(!goal.at_once || goal.size == GroupSize::Pairs, "only pairs are made at once");
  return Chooser(jobs, goal).choose();
}

}  // namespace isobar::allocators

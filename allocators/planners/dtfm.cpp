#include "allocators/planners/dtfm.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/fast_random.hpp"
#include "allocators/planners/dtfm_costs.hpp"
#include "allocators/search_clock.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr std::size_t population = 100;
constexpr std::uint64_t trials = 4'900;
constexpr Seconds longest_search(300);
constexpr std::size_t exchanged_devices = 5;
constexpr std::size_t most_cycles = 8;
constexpr std::size_t most_stages_by_subsets = 10;

/// A shortest open path through all stages, by dynamic programming over subsets. `hop` is a matrix.
std::vector<std::size_t> shortest_path(const std::vector<double>& hop, std::size_t stages)
{
  const std::size_t subsets = std::size_t{1} << stages;
  std::vector<double> least(subsets * stages, infinity);  // of a path through a subset that ends at a stage
  std::vector<std::size_t> before(subsets * stages, stages);
  for (std::size_t i = 0; i < stages; ++i) least[(std::size_t{1} << i) * stages + i] = 0;
  for (std::size_t subset = 1; subset < subsets; ++subset) {
    for (std::size_t i = 0; i < stages; ++i) {
      const double here = least[subset * stages + i];
      if (here == infinity) continue;
      for (std::size_t j = 0; j < stages; ++j) {
        if ((subset >> j & 1) != 0) continue;
        const std::size_t next = (subset | std::size_t{1} << j) * stages + j;
        if (here + hop[i * stages + j] >= least[next]) continue;
        least[next] = here + hop[i * stages + j];
        before[next] = i;
      }
    }
  }
  const auto ends = least.end() - static_cast<std::ptrdiff_t>(stages);
  auto end = static_cast<std::size_t>(std::min_element(ends, least.end()) - ends);
  std::vector<std::size_t> path;
  for (std::size_t subset = subsets - 1; end < stages;) {
    path.push_back(end);
    const std::size_t previous = before[subset * stages + end];
    subset &= ~(std::size_t{1} << end);
    end = previous;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

double length_of(const std::vector<double>& hop, const std::vector<std::size_t>& path)
{
  double length = 0;
  for (std::size_t i = 1; i < path.size(); ++i) length += hop[path[i - 1] * path.size() + path[i]];
  return length;
}

/// A short open path: from the best first stage always to the nearest one, then with parts reversed while that helps.
std::vector<std::size_t> short_path(const std::vector<double>& hop, std::size_t stages)
{
  std::vector<std::size_t> best;
  double least = infinity;
  for (std::size_t first = 0; first < stages; ++first) {
    std::vector<std::size_t> path(stages);
    std::iota(path.begin(), path.end(), std::size_t{0});
    std::swap(path.front(), path[first]);
    for (std::size_t i = 1; i + 1 < stages; ++i) {
      const auto nearest = std::min_element(
          path.begin() + static_cast<std::ptrdiff_t>(i), path.end(),
          [&](std::size_t a, std::size_t b) { return hop[path[i - 1] * stages + a] < hop[path[i - 1] * stages + b]; });
      std::iter_swap(path.begin() + static_cast<std::ptrdiff_t>(i), nearest);
    }
    const double length = length_of(hop, path);
    if (length >= least) continue;
    least = length;
    best = path;
  }
  for (bool is_better = true; is_better;) {
    is_better = false;
    for (std::size_t i = 0; i < stages; ++i) {
      for (std::size_t j = i + 2; j <= stages; ++j) {
        auto path = best;
        std::reverse(path.begin() + static_cast<std::ptrdiff_t>(i), path.begin() + static_cast<std::ptrdiff_t>(j));
        const double length = length_of(hop, path);
        if (length >= least) continue;
        least = length;
        best = path;
        is_better = true;
      }
    }
  }
  return best;
}

/// A stage of each device; that of the idle ones is the number of stages.
using Labels = std::vector<std::size_t>;

class GeneticSearch {
 public:
  GeneticSearch(const DtFmCosts& costs, std::uint64_t seed) : costs_(costs), random_(seed) {}

  /// The groups of the best placement found, in the order of the stages.
  DtFmGroups run(SearchClock& clock, std::uint64_t most_trials)
  {
    std::vector<Member> members;
    while (members.size() < population && (members.empty() || !clock.is_over())) members.push_back(random_member());
    for (std::uint64_t trial = 0; trial < most_trials && !clock.is_over(); ++trial) {
      auto& first = members[random_.below(members.size())];
      auto& second = members[random_.below(members.size())];
      Member child{crossed(first.labels, second.labels), 0};
      improve(child.labels);
      child.cost = cost_of(child.labels);
      Member& dearer = first.cost > second.cost ? first : second;
      if (child.cost <= dearer.cost) dearer = std::move(child);
    }
    const auto best = std::min_element(members.begin(), members.end(),
                                       [](const Member& a, const Member& b) { return a.cost < b.cost; });
    return in_order(groups_of(best->labels));
  }

 private:
  struct Member {
    Labels labels;
    double cost = 0;
  };

  Member random_member()
  {
    std::vector<std::size_t> order(costs_.devices());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    Member member{Labels(order.size(), costs_.stages()), 0};
    for (std::size_t i = 0; i < costs_.stages() * costs_.replicas(); ++i) {
      member.labels[order[i]] = i / costs_.replicas();
    }
    member.cost = cost_of(member.labels);
    return member;
  }

  /// The groups of all stages.
  DtFmGroups groups_of(const Labels& labels) const
  {
    DtFmGroups groups(costs_.stages());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < groups.size()) groups[labels[i]].push_back(i);
    }
    return groups;
  }

  std::vector<double> hops_of(const DtFmGroups& groups) const
  {
    std::vector<double> hop(groups.size() * groups.size(), 0);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (std::size_t j = 0; j < groups.size(); ++j) {
        if (i != j) hop[i * groups.size() + j] = slowest_pass(costs_, groups[i], groups[j]);
      }
    }
    return hop;
  }

  static std::vector<std::size_t> path_of(const std::vector<double>& hop, std::size_t stages)
  {
    return stages <= most_stages_by_subsets ? shortest_path(hop, stages) : short_path(hop, stages);
  }

  double cost_of(const Labels& labels) const
  {
    const auto groups = groups_of(labels);
    double sync = 0;
    for (const auto& group : groups) sync = std::max(sync, costs_.sync_of(group));
    const auto hop = hops_of(groups);
    return sync + 2 * length_of(hop, path_of(hop, groups.size()));
  }

  DtFmGroups in_order(const DtFmGroups& groups) const
  {
    DtFmGroups ordered;
    for (const std::size_t stage : path_of(hops_of(groups), groups.size())) ordered.push_back(groups[stage]);
    return ordered;
  }

  Labels crossed(const Labels& first, const Labels& second)
  {
    Labels child = second;
    for (std::size_t i = 0; i < exchanged_devices; ++i) {
      const std::size_t device = random_.below(child.size());
      child[device] = first[device];
    }
    // The idle devices are a group too.
    std::vector<std::size_t> room(costs_.stages(), costs_.replicas());
    room.push_back(costs_.devices() - costs_.stages() * costs_.replicas());
    std::vector<std::size_t> homeless;
    for (std::size_t device = 0; device < child.size(); ++device) {
      if (room[child[device]] > 0) {
        --room[child[device]];
      } else {
        homeless.push_back(device);
      }
    }
    for (const std::size_t device : homeless) {
      const auto group = std::find_if(room.begin(), room.end(), [](std::size_t free) { return free > 0; });
      child[device] = static_cast<std::size_t>(group - room.begin());
      --*group;
    }
    return child;
  }

  /// The device of a stage that may leave it: the unlocked one with the fastest pass to another of the stage.
  std::optional<std::pair<std::size_t, double>> candidate_of(const std::vector<std::size_t>& group,
                                                             const std::vector<bool>& is_locked) const
  {
    std::optional<std::pair<std::size_t, double>> candidate;
    for (const std::size_t device : group) {
      if (is_locked[device]) continue;
      double fastest = infinity;
      for (const std::size_t other : group) {
        if (other != device) fastest = std::min(fastest, costs_.pass(device, other));
      }
      if (!candidate || fastest < candidate->second) candidate = {device, fastest};
    }
    return candidate;
  }

  double mean_pass(std::size_t device, const std::vector<std::size_t>& group) const
  {
    double sum = 0;
    for (const std::size_t other : group) sum += costs_.pass(device, other);
    return sum / static_cast<double>(group.size());
  }

  struct Move {
    std::size_t device = 0;
    std::size_t from = 0;
    std::size_t to = 0;
  };

  void improve(Labels& labels) const
  {
    if (costs_.replicas() == 1) return;  // a device has no fellows
    Labels moved = labels;
    std::vector<bool> is_locked(labels.size(), false);
    double gain = 0;
    double best = 0;
    for (std::size_t cycle = 0; cycle < most_cycles; ++cycle) {
      double of_cycle = 0;
      const auto moves = best_cycle(groups_of(moved), is_locked, of_cycle);
      if (moves.empty()) break;
      for (const auto& [device, from, to] : moves) {
        moved[device] = to;
        is_locked[device] = true;
      }
      gain += of_cycle;
      if (gain <= best) continue;
      best = gain;
      labels = moved;
    }
  }

  /// Candidates that move, each to the stage of the next one and the last to that of the first: the best beginning of a
  /// chain along the largest gains.
  std::vector<Move> best_cycle(const DtFmGroups& groups, const std::vector<bool>& is_locked, double& gain) const
  {
    const std::size_t stages = groups.size();
    std::vector<std::optional<std::pair<std::size_t, double>>> candidates;
    for (const auto& group : groups) candidates.push_back(candidate_of(group, is_locked));
    const auto gain_of = [&](std::size_t from, std::size_t to) {
      const auto& [device, fastest] = *candidates[from];
      return mean_pass(device, groups[to]) - fastest;
    };
    std::optional<std::size_t> first;
    double largest = -infinity;
    for (std::size_t from = 0; from < stages; ++from) {
      for (std::size_t to = 0; candidates[from] && to < stages; ++to) {
        if (to == from || gain_of(from, to) <= largest) continue;
        largest = gain_of(from, to);
        first = from;
      }
    }
    std::vector<Move> moves;
    if (!first) return moves;
    std::vector<Move> best;
    std::vector<bool> is_visited(stages, false);
    double sum = 0;
    gain = -infinity;
    for (std::size_t from = *first;;) {
      is_visited[from] = true;
      if (!moves.empty() && sum + gain_of(from, *first) > gain) {
        gain = sum + gain_of(from, *first);
        best = moves;
        best.push_back({candidates[from]->first, from, *first});
      }
      std::optional<std::size_t> next;
      for (std::size_t to = 0; to < stages; ++to) {
        if (is_visited[to] || !candidates[to]) continue;
        if (!next || gain_of(from, to) > gain_of(from, *next)) next = to;
      }
      if (!next) return best;
      sum += gain_of(from, *next);
      moves.push_back({candidates[from]->first, from, *next});
      from = *next;
    }
  }

  const DtFmCosts& costs_;
  FastRandom random_;
};

}  // namespace

Proposals propose_by_dtfm(const HybridProblem& problem)
{
  SearchClock clock(limited_to(longest_search, problem.limits));
  Proposals proposals;
  for (const auto& shape : dtfm_shapes(problem)) {
    if (!proposals.plans.empty() && clock.is_over()) break;
    const DtFmCosts costs = dtfm_costs(problem, shape);
    GeneticSearch search(costs, problem.limits.seed);
    proposals.plans.push_back(dtfm_plan(problem, costs, search.run(clock, problem.limits.budget.value_or(trials))));
    if (clock.is_over()) proposals.plans.back().outcome = Outcome::TimedOut;
  }
  if (proposals.plans.empty()) proposals.reason = reason_of_no_shape(problem);
  return proposals;
}

}  // namespace isobar::allocators

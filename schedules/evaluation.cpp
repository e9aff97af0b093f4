#include "schedules/evaluation.hpp"

#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/lowering/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace isobar::schedules {

namespace {

/// The forwards of a rank with `parts` stages: `group` micro-batches through its first stage, then through its next,
/// and so on; then the next group.
///
/// All ranks follow one order of groups, stages and micro-batches, so no two wait for each other. While a group of as
/// many micro-batches as there are ranks is in one stage of a rank, the stages between are on the other ranks.
Order forwards_in_groups(std::size_t parts, std::uint64_t group, std::uint64_t microbatches)
{
  const auto forward = [](std::size_t part, std::uint64_t microbatch) {
    return Task{Opcode::Forward, static_cast<std::uint32_t>(part), microbatch};
  };
  if (parts == 1) return Order(std::vector<Run>{{microbatches, {{forward(0, 0), 1}}}});
  const std::uint64_t groups = microbatches / group;
  Run whole{groups, {}};
  for (std::size_t part = 0; part < parts; ++part) {
    for (std::uint64_t i = 0; i < group; ++i) {
      whole.slots.push_back({forward(part, i), static_cast<std::int64_t>(group)});
    }
  }
  std::vector<Run> runs = {std::move(whole)};
  for (std::size_t part = 0; part < parts; ++part) {
    runs.push_back({microbatches % group, {{forward(part, groups * group), 1}}});
  }
  return Order(std::move(runs));
}

/// The same of a rank with replicas of some stages, which take some of the micro-batches, for groups of the step's.
Order forwards_of_replicas(const std::vector<PlacedShard>& parts, const std::vector<MicrobatchPattern>& patterns,
                           std::uint64_t group, std::uint64_t microbatches)
{
  if (parts.size() == 1) {
    return forwards_in_groups(1, group, patterns[parts.front().stage].count(parts.front().replica));
  }
  std::vector<Run> runs;
  for (std::uint64_t first = 0; first < microbatches; first += group) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const MicrobatchPattern& pattern = patterns[parts[part].stage];
      for (std::uint64_t m = first; m < std::min(first + group, microbatches); ++m) {
        if (pattern.replica_of(m) != parts[part].replica) continue;
        const Task task = {Opcode::Forward, static_cast<std::uint32_t>(part), pattern.index_of(m)};
        runs.push_back({1, {{task, 1}}});
      }
    }
  }
  return Order(std::move(runs));
}

}  // namespace

std::unique_ptr<Program> make_evaluation_program(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const std::uint64_t ranks = devices_of(plan).size();
  std::vector<std::vector<PlacedShard>> parts_of_rank(ranks);
  for (const auto& placed : placed_shards(plan)) parts_of_rank[placed.rank].push_back(placed);
  const bool divides_microbatches = has_replicas(plan) && !divides_operators(plan);
  const auto patterns = divides_microbatches ? microbatch_patterns(plan) : std::vector<MicrobatchPattern>();
  std::vector<Order> orders;
  for (const auto& parts : parts_of_rank) {
    orders.push_back(divides_microbatches ? forwards_of_replicas(parts, patterns, ranks, plan.goal.microbatches)
                                          : forwards_in_groups(parts.size(), ranks, plan.goal.microbatches));
  }
  return make_program(plan, workload, cluster, std::move(orders));
}

}  // namespace isobar::schedules

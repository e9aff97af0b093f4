#include "core/costs/shard_collective_times.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <string>
#include <vector>

namespace isobar {

ShardCollectiveTimes shard_collective_times(const Plan& plan, std::size_t stage, std::size_t layer,
                                            const Workload& workload, const Cluster& cluster)
{
  ShardCollectiveTimes times;
  const Stage& own = plan.stages.at(stage);
  const auto& shards = own.replicas.front().shards;
  if (shards.size() == 1) return times;
  std::vector<std::size_t> endpoints;
  for (const auto& shard : shards) endpoints.push_back(cluster.device_index(shard.device).value());
  const EndNetwork whole = network_of(cluster);
  const EndNetwork network = network_between(endpoints, whole);
  for (const auto& collective : shard_collectives(workload, boundaries_of(workload), layer, own.grid)) {
    if (is_before_pass(collective.role) && !needs_arrival(collective.role)) continue;  // beside the task before
    const auto groups = groups_along(own.grid, collective.axis, shards.size());
    const std::vector<Bytes> sizes(groups.front().size(), collective.size);
    Seconds& time = pass_of(collective.role) == ShardPass::Forward ? times.forward : times.backward;
    std::vector<std::string> sites;  // of a group; those of others lie alike
    for (const std::size_t shard : groups.front()) sites.push_back(shards[shard].site.value_or(""));
    const Algorithm algorithm = algorithm_of_shards(plan.sync.algorithm, sites);
    std::vector<Round> rounds;
    for (const Round& round : rounds_of(collective.opcode, sizes, algorithm, sites)) {
      Round& of_all = rounds.emplace_back();  // groups, beside each other
      for (const auto& group : groups) {
        for (Flow flow : round) {
          flow.from = group[flow.from];
          flow.to = group[flow.to];
          of_all.push_back(flow);
        }
      }
    }
    time += collective_time(rounds, network);
  }
  return times;
}

}  // namespace isobar

#include "core/costs/exchange_times.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <string>
#include <vector>

namespace isobar {

namespace {

/// A group of replicas with its shards, which are ends by replica and shard.
struct ReplicaGroup {
  std::size_t replicas = 0;
  std::size_t shards = 0;

  /// The rounds of a collective among the same shards of all replicas, or among the shards of each, beside each other;
  /// or of one among all.
  std::vector<Round> rounds_of_all(const std::vector<Round>& rounds, GridAxis axis) const
  {
    if (axis == GridAxis::WholeExperts) return rounds;
    const bool is_among_replicas = isobar::is_among_replicas(axis);
    std::vector<Round> all;
    for (const Round& round : rounds) {
      Round& of_all = all.emplace_back();
      for (std::size_t i = 0; i < (is_among_replicas ? shards : replicas); ++i) {
        for (Flow flow : round) {
          flow.from = is_among_replicas ? flow.from * shards + i : i * shards + flow.from;
          flow.to = is_among_replicas ? flow.to * shards + i : i * shards + flow.to;
          of_all.push_back(flow);
        }
      }
    }
    return all;
  }
};

}  // namespace

ExchangeTimes exchange_times(const Plan& plan, std::size_t stage, std::size_t layer, const Workload& workload,
                             const Cluster& cluster, GridAxis axis)
{
  ExchangeTimes times;
  const auto& replicas = plan.stages.at(stage).replicas;
  const ReplicaGroup group{replicas_along(axis, workload), replicas.front().shards.size()};
  if (group.replicas == 1 && !workload.experts.are_whole) return times;
  std::vector<std::size_t> endpoints;  // by replica and shard
  std::vector<std::string> sites;      // of the first shards; the others lie alike
  std::vector<std::string> sites_of_a_replica;
  std::vector<std::string> sites_of_all;
  for (std::size_t part = 0; part < group.replicas; ++part) {
    for (const auto& shard : replicas.at(part).shards) {
      endpoints.push_back(cluster.device_index(shard.device).value());
      sites_of_all.push_back(shard.site.value_or(""));
      if (part == 0) sites_of_a_replica.push_back(sites_of_all.back());
    }
    sites.push_back(replicas[part].shards.front().site.value_or(""));
  }
  const EndNetwork whole = network_of(cluster);
  const EndNetwork network = network_between(endpoints, whole);
  for (const auto& collective : replica_collectives(workload, layer, group.shards)) {
    if (is_of_experts(collective.role) != (axis == GridAxis::Experts)) continue;
    const auto& own_sites = collective.axis == GridAxis::WholeExperts ? sites_of_all
                            : is_among_replicas(collective.axis)      ? sites
                                                                      : sites_of_a_replica;
    const Algorithm algorithm = algorithm_of_group(collective.axis, workload.context, plan.sync.algorithm, own_sites);
    const std::vector<Bytes> sizes(own_sites.size(), collective.size);
    Seconds& time = pass_of(collective.role) == ShardPass::Forward ? times.forward : times.backward;
    time += collective_time(
        group.rounds_of_all(rounds_of(collective.opcode, sizes, algorithm, own_sites), collective.axis), network);
  }
  return times;
}

}  // namespace isobar

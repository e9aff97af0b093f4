#include "core/costs/exchange_times.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace isobar {

namespace {

using Ends = std::vector<std::size_t>;

/// The ends that meet along an axis, of a group of replicas with `shards` shards each, which are ends by replica and
/// shard: the same shards of all replicas, or the shards of each, or all.
std::vector<Ends> ends_along(GridAxis axis, std::size_t replicas, std::size_t shards)
{
  std::vector<Ends> groups;
  if (axis == GridAxis::WholeExperts) {
    Ends& all = groups.emplace_back(replicas * shards);
    std::iota(all.begin(), all.end(), std::size_t{0});
    return groups;
  }
  const bool is_among_replicas = isobar::is_among_replicas(axis);
  groups.resize(is_among_replicas ? shards : replicas);
  for (std::size_t replica = 0; replica < replicas; ++replica) {
    for (std::size_t shard = 0; shard < shards; ++shard) {
      groups[is_among_replicas ? shard : replica].push_back(replica * shards + shard);
    }
  }
  return groups;
}

/// The rounds of an AllToAll of each of equal groups, whose ends are by node, beside each other.
std::vector<Round> exchanges_beside(const std::vector<Ends>& groups, Bytes size, std::size_t nodes)
{
  const std::size_t ends = groups.front().size();
  std::vector<std::string> nodes_of_ends;
  for (std::size_t i = 0; i < ends; ++i) nodes_of_ends.push_back(std::to_string(i * nodes / ends));
  const Algorithm algorithm = nodes > 1 ? Algorithm::Hierarchical : Algorithm::Ring;
  return rounds_beside(rounds_of(Opcode::AllToAll, std::vector<Bytes>(ends, size), algorithm, nodes_of_ends), groups);
}

}  // namespace

ExchangeTimes exchange_times(const Plan& plan, std::size_t stage, std::size_t layer, const Workload& workload,
                             const Cluster& cluster, GridAxis axis, double part)
{
  ExchangeTimes times;
  const auto& replicas = plan.stages.at(stage).replicas;
  const std::size_t members = replicas_along(axis, workload);
  const std::size_t shards = replicas.front().shards.size();
  if (members == 1 && !workload.experts.are_whole) return times;
  std::vector<std::size_t> endpoints;  // by replica and shard
  std::vector<std::string> sites;      // of the first shards; the others lie alike
  std::vector<std::string> sites_of_a_replica;
  std::vector<std::string> sites_of_all;
  for (std::size_t replica = 0; replica < members; ++replica) {
    for (const auto& shard : replicas.at(replica).shards) {
      endpoints.push_back(cluster.device_index(shard.device).value());
      sites_of_all.push_back(shard.site.value_or(""));
      if (replica == 0) sites_of_a_replica.push_back(sites_of_all.back());
    }
    sites.push_back(replicas[replica].shards.front().site.value_or(""));
  }
  const EndNetwork whole = network_of(cluster);
  const EndNetwork network = network_between(endpoints, whole);
  for (const auto& collective : replica_collectives(workload, layer, shards)) {
    if (is_of_experts(collective.role) != (axis == GridAxis::Experts)) continue;
    const auto& own_sites = collective.axis == GridAxis::WholeExperts ? sites_of_all
                            : is_among_replicas(collective.axis)      ? sites
                                                                      : sites_of_a_replica;
    const Algorithm algorithm = algorithm_of_group(collective.axis, workload.context, plan.sync.algorithm, own_sites);
    const double own_part = collective.opcode == Opcode::AllToAll ? part : 1;
    const std::vector<Bytes> sizes(own_sites.size(), own_part * collective.size);
    Seconds& time = pass_of(collective.role) == ShardPass::Forward ? times.forward : times.backward;
    const auto rounds = rounds_of(collective.opcode, sizes, algorithm, own_sites);
    time += collective_time(rounds_beside(rounds, ends_along(collective.axis, members, shards)), network);
  }
  return times;
}

double dispatched_once_a_node(const Plan& plan, std::size_t stage, std::size_t layer, const Workload& workload,
                              const Cluster& cluster)
{
  const auto& experts = workload.layers.at(layer).experts;
  const auto& replicas = plan.stages.at(stage).replicas;
  const std::size_t shards = replicas.front().shards.size();
  if (!experts || workload.experts.parts(shards) == 1) return 1;
  // Ends that exchange with each other: all devices of a group, or those of each shard apart.
  const std::size_t groups = workload.experts.are_whole ? 1 : shards;
  std::vector<std::size_t> endpoints;
  std::vector<std::map<std::string, Ends>> ends_of_nodes(groups);
  for (std::size_t replica = 0; replica < workload.experts.degree; ++replica) {
    for (std::size_t shard = 0; shard < shards; ++shard) {
      const Shard& own = replicas.at(replica).shards[shard];
      ends_of_nodes[groups == 1 ? 0 : shard][own.site.value_or("")].push_back(endpoints.size());
      endpoints.push_back(cluster.device_index(own.device).value());
    }
  }
  const auto& nodes = ends_of_nodes.front();
  const std::size_t count = nodes.size();
  const std::size_t of_node = nodes.begin()->second.size();
  const bool is_even = std::ranges::all_of(nodes, [&](const auto& node) { return node.second.size() == of_node; });
  if (count == 1 || of_node == 1 || !is_even) return 1;

  std::vector<Ends> whole;
  std::vector<Ends> across(groups * of_node);  // at the same place in each node
  std::vector<Ends> inside;
  for (std::size_t group = 0; group < groups; ++group) {
    Ends& all = whole.emplace_back();
    for (const auto& [node, ends] : ends_of_nodes[group]) {
      inside.push_back(ends);
      all.insert(all.end(), ends.begin(), ends.end());
      for (std::size_t place = 0; place < of_node; ++place) across[group * of_node + place].push_back(ends[place]);
    }
  }
  const EndNetwork whole_network = network_of(cluster);
  const EndNetwork network = network_between(endpoints, whole_network);
  const auto n = static_cast<double>(count);
  const auto k = static_cast<double>(experts->per_token);
  const Bytes sent = experts->dispatched / static_cast<double>(shards);
  const double to_a_node = 1 - std::pow(1 - 1 / n, k);
  const Seconds once = std::max(collective_time(exchanges_beside(across, n * to_a_node / k * sent, 1), network),
                                collective_time(exchanges_beside(inside, sent, 1), network));
  const Seconds all = collective_time(exchanges_beside(whole, sent, count), network);
  return std::min(once / all, 1.0);
}

}  // namespace isobar

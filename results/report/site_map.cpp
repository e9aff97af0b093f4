#include "results/report/site_map.hpp"

#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/program/collective.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace isobar::results {

namespace {

using Names = std::vector<std::string>;

bool holds(const Names& names, const std::string& name)
{
  return std::find(names.begin(), names.end(), name) != names.end();
}

void add_sites(SiteMap& map, const Cluster& cluster)
{
  std::map<std::string, std::size_t> index;
  for (std::size_t device = 0; device < cluster.devices.size(); ++device) {
    const std::string& own_site = cluster.devices[device].site;
    const std::string& name = own_site.empty() ? cluster.name : own_site;
    const auto [site, is_new] = index.try_emplace(name, map.sites.size());
    if (is_new) map.sites.push_back({name, {}});
    map.sites[site->second].devices.push_back(device);
    map.site_of.push_back(site->second);
  }
  if (!cluster.data_server) return;
  map.site_of.push_back(map.sites.size());
  map.sites.push_back({*cluster.data_server, {}});
}

/// Links common to the routes of a device to two others: one of its own site and one of another site.
Names own_links_of(std::size_t device, const SiteMap& map, const Cluster& cluster)
{
  const auto other = [&](bool same_site) -> std::optional<std::size_t> {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
      if (i == device || (map.site_of[i] == map.site_of[device]) != same_site) continue;
      found = i;
      if (same_site) break;  // else the last one
    }
    return found;
  };
  const auto near = other(true);
  const auto far = other(false);
  std::vector<std::size_t> others;
  if (near) others.push_back(*near);
  if (far) others.push_back(*far);
  if (near && !far) {  // one site: the last other device
    for (std::size_t last = cluster.devices.size(); last-- > 0;) {
      if (last == device || last == *near) continue;
      others.push_back(last);
      break;
    }
  }
  Names own;
  for (const bool outwards : {true, false}) {
    Names common;
    for (std::size_t i = 0; i < others.size(); ++i) {
      const Names route =
          outwards ? cluster.network->links(device, others[i]) : cluster.network->links(others[i], device);
      if (i == 0) {
        common = route;
      } else {
        std::erase_if(common, [&route](const auto& link) { return !holds(route, link); });
      }
    }
    for (const auto& link : common) {
      if (!holds(own, link)) own.push_back(link);
    }
  }
  return own;
}

SiteMap::Connection& connection_between(SiteMap& map, std::size_t from, std::size_t to, const Path& path)
{
  const auto [a, b] = std::minmax(from, to);
  for (auto& connection : map.connections) {
    if (connection.a == a && connection.b == b) return connection;
  }
  map.connections.push_back({a, b, {}, path});
  return map.connections.back();
}

/// Adds the links of a transfer and, unless it is the input, of the gradients back.
void add_connection(SiteMap& map, const Cluster& cluster, std::size_t from, std::size_t to,
                    const std::map<std::size_t, Names>& own_links)
{
  const std::size_t site_a = map.site_of[from];
  const std::size_t site_b = map.site_of[to];
  if (site_a == site_b) return;
  auto& connection = connection_between(map, site_a, site_b, cluster.path(from, to));
  Names links = cluster.network->links(from, to);
  if (from < cluster.devices.size()) {
    const Names back = cluster.network->links(to, from);
    links.insert(links.end(), back.begin(), back.end());
  }
  const auto is_own = [&](const std::string& link) {
    return std::any_of(own_links.begin(), own_links.end(), [&](const auto& entry) {
      return (entry.first == from || entry.first == to) && holds(entry.second, link);
    });
  };
  Names shared = links;
  std::erase_if(shared, is_own);
  for (const auto& link : shared.empty() ? links : shared) {
    if (!holds(connection.links, link)) connection.links.push_back(link);
  }
}

/// By replica; stages with the same numbers pass each micro-batch from a replica to the one of the same index.
std::vector<std::uint64_t> microbatches_of(const Stage& stage)
{
  std::vector<std::uint64_t> microbatches;
  for (const auto& replica : stage.replicas) microbatches.push_back(replica.microbatches);
  if (microbatches.size() == 1) microbatches.front() = 0;  // all of the step
  return microbatches;
}

using StageDevices = std::vector<std::vector<std::size_t>>;  // by replica and shard

/// The flows, between indices of its replicas, by which a stage adds up the gradients of a shard of each replica.
std::vector<Flow> sync_flows(const Plan& plan, const StageDevices& devices, std::size_t shard, const Cluster& cluster)
{
  std::vector<std::string> sites;
  for (const auto& of_replica : devices) sites.push_back(cluster.devices[of_replica[shard]].site);
  std::vector<Flow> flows;
  const std::vector<Bytes> sizes(devices.size(), Bytes(1));
  const auto add = [&](Opcode opcode) {
    for (const auto& round : rounds_of(opcode, sizes, plan.sync.algorithm, sites)) {
      flows.insert(flows.end(), round.begin(), round.end());
    }
  };
  if (plan.sync.sharded == Sharding::None) {
    add(Opcode::AllReduce);
  } else {
    add(Opcode::ReduceScatter);
    add(Opcode::AllGather);
  }
  return flows;
}

template <typename Connect>
void for_each_pair(const std::vector<std::size_t>& some, const std::vector<std::size_t>& others, Connect connect)
{
  for (const std::size_t from : some) {
    for (const std::size_t to : others) {
      if (from != to) connect(from, to);
    }
  }
}

/// Those whose replicas are not divided alike meet in many ways.
template <typename Connect>
void for_each_pair_of_replicas(const StageDevices& devices, Connect connect)
{
  for (const auto& replica : devices) {
    for (const auto& other : devices) {
      if (&replica != &other) for_each_pair(replica, other, connect);
    }
  }
}

}  // namespace

SiteMap site_map_of(const Plan& plan, const Cluster& cluster)
{
  SiteMap map;
  add_sites(map, cluster);
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) index[cluster.devices[i].name] = i;
  std::map<std::size_t, Names> own_links;
  for (const auto& name : devices_of(plan)) {
    const std::size_t device = index.at(name);
    map.device_of.push_back(device);
    map.own_links.push_back(own_links.emplace(device, own_links_of(device, map, cluster)).first->second);
  }
  const auto connect = [&](std::size_t from, std::size_t to) { add_connection(map, cluster, from, to, own_links); };
  // By stage, replica and shard.
  std::vector<StageDevices> devices(plan.stages.size());
  for (const auto& placed : placed_shards(plan)) {
    if (placed.shard == 0) devices[placed.stage].emplace_back();
    devices[placed.stage].back().push_back(map.device_of[placed.rank]);
  }
  if (cluster.data_server && !plan.stages.empty()) {
    map.device_of.push_back(cluster.data_server_index());
    for (const auto& replica : devices.front()) {
      for (const std::size_t first : replica) connect(cluster.data_server_index(), first);
    }
  }
  const bool divides = divides_operators(plan);
  for (std::size_t stage = 0; stage + 1 < plan.stages.size(); ++stage) {
    if (divides && has_same_devices(plan.stages[stage], plan.stages[stage + 1])) continue;  // parts
    const bool is_alike = microbatches_of(plan.stages[stage]) == microbatches_of(plan.stages[stage + 1]);
    for (std::size_t from = 0; from < devices[stage].size(); ++from) {
      for (std::size_t to = 0; to < devices[stage + 1].size(); ++to) {
        if (is_alike && from != to) continue;
        const auto& senders = devices[stage][from];
        const auto& receivers = devices[stage + 1][to];
        if (divides) {  // each may have a slice of what the others have
          for_each_pair(senders, receivers, connect);
          continue;
        }
        for (std::size_t i = 0; i < receivers.size(); ++i) connect(senders[i % senders.size()], receivers[i]);
      }
    }
  }
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const ShardGrid& grid = plan.stages[stage].grid;
    if (divides && stage > 0 && has_same_devices(plan.stages[stage - 1], plan.stages[stage])) continue;
    for (const auto& shards : devices[stage]) {
      if (divides) for_each_pair(shards, shards, connect);
      for (const GridAxis axis : axes_of(grid)) {
        for (const auto& ring : groups_along(grid, axis, shards.size())) {
          for (std::size_t i = 0; i < ring.size(); ++i) connect(shards[ring[i]], shards[ring[(i + 1) % ring.size()]]);
        }
      }
    }
    if (!are_divided_alike(plan.stages[stage])) {
      for_each_pair_of_replicas(devices[stage], connect);
      continue;
    }
    for (std::size_t shard = 0; shard < devices[stage].front().size(); ++shard) {
      for (const Flow& flow : sync_flows(plan, devices[stage], shard, cluster)) {
        connect(devices[stage][flow.from][shard], devices[stage][flow.to][shard]);
      }
    }
  }
  return map;
}

}  // namespace isobar::results

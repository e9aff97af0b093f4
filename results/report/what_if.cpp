#include "results/report/what_if.hpp"

#include "core/plan/placed_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar::results {

namespace {

constexpr double more = 1.1;
constexpr double less = 0.9;
/// Most changes of each kind; each costs a simulation.
constexpr std::size_t most_asked_devices = 3;
constexpr std::size_t most_links = 3;
constexpr std::size_t most_connections = 6;

using Property = WhatIf::Property;

void add_devices(std::vector<WhatIf>& what_ifs, const Result& result)
{
  std::vector<std::pair<std::string, Seconds>> devices;
  for (const auto& stage : result.stages) {
    const auto found = std::find_if(devices.begin(), devices.end(),
                                    [&stage](const auto& device) { return device.first == stage.device; });
    auto& device = found == devices.end() ? devices.emplace_back(stage.device, Seconds(0)) : *found;
    device.second += stage.compute;
  }
  std::stable_sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (std::size_t i = 0; i < std::min(most_asked_devices, devices.size()); ++i) {
    const std::string& device = devices[i].first;
    what_ifs.push_back({fmt::format("+10 % speed of {}", device), Property::Speed, {device}, more, false});
  }
}

/// Links that carried data, busiest first.
std::vector<LinkMetrics> busiest_links(const Result& result)
{
  auto links = result.links;
  std::stable_sort(links.begin(), links.end(),
                   [](const auto& a, const auto& b) { return a.busy_fraction > b.busy_fraction; });
  return links;
}

void add_connections(std::vector<WhatIf>& what_ifs, const std::vector<LinkMetrics>& busiest, const SiteMap& map)
{
  const auto place_of = [&busiest](const SiteMap::Connection& connection) {
    return std::find_if(busiest.begin(), busiest.end(), [&connection](const auto& link) {
      return std::find(connection.links.begin(), connection.links.end(), link.name) != connection.links.end();
    });
  };
  auto connections = map.connections;
  std::stable_sort(connections.begin(), connections.end(),
                   [&](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
  for (std::size_t i = 0; i < std::min(most_connections, connections.size()); ++i) {
    const auto& connection = connections[i];
    what_ifs.push_back(
        {fmt::format("+10 % bandwidth between {} and {}", map.sites[connection.a].name, map.sites[connection.b].name),
         Property::Bandwidth, connection.links, more, false});
  }
}

void add_links(std::vector<WhatIf>& what_ifs, const std::vector<LinkMetrics>& busiest)
{
  std::size_t added = 0;
  for (const auto& link : busiest) {
    if (added == most_links) return;
    const bool is_listed = std::any_of(what_ifs.begin(), what_ifs.end(), [&link](const auto& what_if) {
      return what_if.names == std::vector{link.name};
    });
    if (is_listed) continue;
    what_ifs.push_back(
        {fmt::format("+10 % bandwidth of {}", link.name), Property::Bandwidth, {link.name}, more, false});
    ++added;
  }
}

}  // namespace

std::vector<WhatIf> what_ifs_of(const Result& result, const SiteMap& map)
{
  std::vector<WhatIf> what_ifs;
  what_ifs.push_back({"+10 % speed of all devices", Property::Speed, {}, more, false});
  add_devices(what_ifs, result);
  if (uses_machines(result.plan)) {
    what_ifs.push_back({"+10 % update speed of all machines", Property::UpdateSpeed, {}, more, false});
  }
  const auto busiest = busiest_links(result);
  if (!busiest.empty()) {
    what_ifs.push_back({"+10 % bandwidth of all links", Property::Bandwidth, {}, more, false});
    add_connections(what_ifs, busiest, map);
    add_links(what_ifs, busiest);
    what_ifs.push_back({"\u221210 % latency of all links", Property::Latency, {}, less, false});
  }
  what_ifs.push_back({"+10 % memory of all devices", Property::Memory, {}, more, true});
  return what_ifs;
}

}  // namespace isobar::results

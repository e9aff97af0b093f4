#include "core/program/link_loads.hpp"

#include "core/program/shared_flows.hpp"

#include <algorithm>

namespace isobar {

namespace {

constexpr double rounding_of_loads = 1e-12;

template <typename Sum>
void add_loads(std::unordered_map<std::string_view, LinkLoad>& loads,
               const std::unordered_map<std::string_view, LinkLoad>& others, Sum sum)
{
  for (const auto& [name, other] : others) {
    const auto [place, is_new] = loads.try_emplace(name, other);
    if (is_new) continue;
    LinkLoad& load = place->second;
    load.most = sum(load.most, other.most);
    load.least_weight = std::min(load.least_weight, other.least_weight);
    load.filling_weight = std::max(load.filling_weight, other.filling_weight);
  }
}

}  // namespace

bool LinkLoad::is_contended() const
{
  return is_fat_pipe ? least_weight < filling_weight * (1 - rounding_of_loads)
                     : most > bandwidth * (1 + rounding_of_loads);
}

void LinkLoads::add(const SharedLink& link, double most, double weight)
{
  LinkLoad& load = loads_[link.name];
  load.bandwidth = link.bandwidth.value;
  load.is_fat_pipe = link.is_fat_pipe;
  load.most += link.passes * most;
  load.least_weight = std::min(load.least_weight, weight);
  if (most >= load.bandwidth * (1 - rounding_of_loads)) load.filling_weight = std::max(load.filling_weight, weight);
}

void LinkLoads::add_beside(const LinkLoads& others)
{
  add_loads(loads_, others.loads_, [](double a, double b) { return a + b; });
}

void LinkLoads::add_after(const LinkLoads& others)
{
  add_loads(loads_, others.loads_, [](double a, double b) { return std::max(a, b); });
}

bool LinkLoads::are_contended() const
{
  return std::any_of(loads_.begin(), loads_.end(), [](const auto& each) { return each.second.is_contended(); });
}

LinkLoads loads_of(const Round& round, const EndNetwork& network)
{
  LinkLoads loads;
  for (const Flow& flow : round) {
    const TransferTimes alone = network.transfer(flow.from, flow.to, flow.size());
    if (!(alone.data > Seconds(0))) continue;
    const double most = (flow.size() / alone.data).value;
    for (const SharedLink& link : network.shared_links(flow.from, flow.to)) {
      loads.add(link, most, weight_of_flow(alone.latency));
    }
  }
  return loads;
}

}  // namespace isobar

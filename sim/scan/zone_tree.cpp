#include "sim/scan/zone_tree.hpp"

namespace isobar::sim {

void ZoneTree::add_zone(const std::string& name, std::optional<std::size_t> parent)
{
  index_of_zone_.emplace(name, zones_.size());
  zones_.push_back({name, parent});
}

void ZoneTree::add_host(const std::string& name, std::size_t zone)
{
  zone_of_.emplace(name, zone);
  ++zones_.at(zone).hosts;
  for (std::optional<std::size_t> each = zone; each; each = zones_.at(*each).parent) ++zones_.at(*each).hosts_within;
}

void ZoneTree::add_router(const std::string& name, std::size_t zone)
{
  zone_of_.emplace(name, zone);
}

std::optional<std::string> ZoneTree::inner_zone_of_gateway(const std::string& zone, const std::string& gateway) const
{
  const auto outer = index_of_zone_.find(zone);
  const auto inner = zone_of_.find(gateway);
  if (outer == index_of_zone_.end() || inner == zone_of_.end() || outer->second == inner->second) return std::nullopt;
  const Zone& holder = zones_[inner->second];
  if (holder.hosts == zones_[outer->second].hosts_within) return std::nullopt;
  return holder.name;
}

}  // namespace isobar::sim

#include "sim/scan/platform_names.hpp"

#include <fmt/format.h>

#include <iterator>
#include <pugixml.hpp>

namespace isobar::sim {

void PlatformNames::add_netpoint(const pugi::xml_node& node, const std::string& name, NetpointKind kind)
{
  const auto [known, added] = netpoints_.try_emplace(name, Netpoint{kind, reader_.line_of(node), netpoints_.size()});
  if (!added) {
    reader_.add_fault(node, fmt::format("the name {} is already taken in line {}", name, known->second.line));
  }
}

void PlatformNames::add_link(const pugi::xml_node& node, const std::string& name, Seconds latency,
                             BytesPerSecond bandwidth, bool split_duplex)
{
  const auto [known, added] = links_.try_emplace(name, Link{reader_.line_of(node), split_duplex, latency, bandwidth});
  if (!added) {
    reader_.add_fault(node, fmt::format("the link {} is already defined in line {}", name, known->second.line));
    return;
  }
  if (!split_duplex) return;
  add_link(node, name + "_UP", latency, bandwidth, false);
  add_link(node, name + "_DOWN", latency, bandwidth, false);
}

void PlatformNames::add_topology(const std::string& id)
{
  const std::string beginning = id + "_";
  if (is_of_topology(beginning)) return;
  auto next = std::next(topologies_.insert(beginning).first);
  while (next != topologies_.end() && next->starts_with(beginning)) next = topologies_.erase(next);
}

bool PlatformNames::has_host(const std::string& name) const
{
  const auto netpoint = netpoints_.find(name);
  return netpoint != netpoints_.end() && netpoint->second.kind == NetpointKind::Host;
}

const PlatformNames::Link* PlatformNames::find_link(const std::string& name) const
{
  const auto link = links_.find(name);
  return link == links_.end() ? nullptr : &link->second;
}

std::vector<std::string> PlatformNames::parts_of_link(const std::string& name) const
{
  const auto link = links_.find(name);
  if (link != links_.end() && link->second.split_duplex) return {name + "_UP", name + "_DOWN"};
  return {name};
}

bool PlatformNames::is_of_topology(const std::string& link) const
{
  // A prefix of `link` would be the last entry before it, because all entries in between would begin with it, too.
  const auto after = topologies_.upper_bound(link);
  return after != topologies_.begin() && link.starts_with(*std::prev(after));
}

bool PlatformNames::knows_link(const std::string& name) const
{
  // Topologies name their links by rules of their own, which SimGrid checks.
  return name == "__loopback__" || links_.contains(name) || is_of_topology(name);
}

void PlatformNames::check_route(const pugi::xml_node& node, RouteLines& routes)
{
  const std::string_view tag = node.name();
  const bool between_zones = is_one_of(tag, {"zoneRoute", "ASroute", "bypassZoneRoute", "bypassASroute"});
  if (!reader_.has_all(node, {"src", "dst"})) return;
  if (between_zones && !reader_.has_all(node, {"gw_src", "gw_dst"})) return;
  for (const char* end : {"src", "dst", "gw_src", "gw_dst"}) {
    const auto entry = node.attribute(end);
    if (entry && !netpoints_.contains(entry.value())) {
      reader_.add_fault(node,
                        fmt::format("{} {}: there is no host, router or zone of this name above", end, entry.value()));
    }
  }
  if (!tag.starts_with("bypass")) check_route_is_new(node, routes);
  for (const auto& part : node.children("link_ctn")) check_route_link(node, part);
}

void PlatformNames::check_route_is_new(const pugi::xml_node& node, RouteLines& routes)
{
  const auto from = netpoints_.find(attribute(node, "src"));
  const auto to = netpoints_.find(attribute(node, "dst"));
  if (from == netpoints_.end() || to == netpoints_.end()) return;
  const auto add = [&](const auto& begin, const auto& end) {
    const std::uint64_t ends = begin->second.number << 32 | end->second.number;
    const auto [known, added] = routes.try_emplace(ends, reader_.line_of(node));
    if (!added) {
      reader_.add_fault(node,
                        fmt::format("the route from {} to {} is already defined in line {} (routes go both ways unless "
                                    "symmetrical=\"NO\")",
                                    begin->first, end->first, known->second));
    }
    return added;
  };
  const bool both_ways = !is_one_of(attribute(node, "symmetrical"), {"NO", "no"}) && from != to;
  if (add(from, to) && both_ways) add(to, from);
}

void PlatformNames::check_route_link(const pugi::xml_node& route, const pugi::xml_node& part)
{
  const std::string link = attribute(part, "id");
  const auto refuse = [&](const std::string& what) {
    reader_.faults().add(
        reader_.line_of(part), "",
        fmt::format("{} from {} to {}: {}", route.name(), attribute(route, "src"), attribute(route, "dst"), what));
  };
  const auto known = links_.find(link);
  if (known == links_.end()) {
    if (!knows_link(link)) refuse(fmt::format("there is no link {} above", link));
    return;
  }
  const bool directed = is_one_of(attribute(part, "direction"), {"UP", "DOWN"});
  if (known->second.split_duplex && !directed) {
    refuse(fmt::format("the link {} is split-duplex; add direction=\"UP\" or \"DOWN\"", link));
  } else if (!known->second.split_duplex && directed) {
    refuse(fmt::format("the link {} is not split-duplex and has no direction", link));
  }
}

void PlatformNames::check_host_link(const pugi::xml_node& node)
{
  if (!has_host(attribute(node, "id"))) {
    reader_.add_fault(node, "there is no host of this name");
  }
  for (const char* direction : {"up", "down"}) {
    const std::string link = attribute(node, direction);
    const auto known = links_.find(link);
    if (!knows_link(link)) {
      reader_.add_fault(node, fmt::format("{}: there is no link {}", direction, link));
    } else if (known != links_.end() && known->second.split_duplex) {
      reader_.add_fault(node, fmt::format("{}: the link {} is split-duplex; write {}_{}", direction, link, link,
                                          direction == std::string_view("up") ? "UP" : "DOWN"));
    }
  }
}

}  // namespace isobar::sim

#include "sim/scan/zone_content.hpp"

#include "sim/scan/xml_element.hpp"

#include <fmt/format.h>

#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>

namespace isobar::sim {

namespace {

bool is_zone(std::string_view tag)
{
  return is_one_of(tag, {"zone", "AS", "cluster", "peer"});
}
bool is_host(std::string_view tag)
{
  return is_one_of(tag, {"host", "router", "host_link"});
}
bool joins_zones(std::string_view tag)
{
  return is_one_of(tag, {"zoneRoute", "ASroute", "bypassZoneRoute", "bypassASroute"});
}
bool joins_hosts(std::string_view tag)
{
  return is_one_of(tag, {"route", "bypassRoute"});
}
bool is_anywhere(std::string_view tag)
{
  return is_one_of(tag, {"trace", "trace_connect"});
}

/// What the elements of a zone are allowed to follow.
class ContentCheck {
 public:
  ContentCheck(const pugi::xml_node& zone, const ElementReader& reader) : zone_(zone), reader_(reader) {}

  /// Why an element is not allowed after those before it; none if it is.
  std::optional<std::string> fault_of(const pugi::xml_node& node)
  {
    const std::string_view tag = node.name();
    const std::string zone = attribute(zone_, "id");
    if (tag == "prop") {
      if (!has_elements_) return std::nullopt;
      return fmt::format("comes after other elements of zone {}; write props first", zone);
    }
    has_elements_ = true;
    if (joins_zones(tag) || joins_hosts(tag)) {
      has_routes_ = true;
      if (joins_zones(tag) && host_) {
        return fmt::format("joins zones, and zone {} has {}; write <route>", zone, shown_of(host_));
      }
      if (joins_hosts(tag) && sub_zone_) {
        return fmt::format("joins hosts, and zone {} has {}; write <zoneRoute>, with gw_src and gw_dst", zone,
                           shown_of(sub_zone_));
      }
      return std::nullopt;
    }
    if (has_routes_ && !is_anywhere(tag)) {
      return fmt::format("comes after a route of zone {}; write routes last", zone);
    }
    if (is_host(tag) && !host_) host_ = node;
    if (is_zone(tag) && !sub_zone_) sub_zone_ = node;
    if (!host_ || !sub_zone_) return std::nullopt;
    return fmt::format(
        "is in zone {} beside {}; a zone has either hosts and routers, or zones and clusters: write a zone of their "
        "own for the hosts, and join the zones by zoneRoutes",
        zone, shown_of(is_host(tag) ? sub_zone_ : host_));
  }

 private:
  std::string shown_of(const pugi::xml_node& node) const
  {
    return fmt::format("{} {} (line {})", node.name(), attribute(node, "id"), reader_.line_of(node));
  }

  const pugi::xml_node& zone_;
  const ElementReader& reader_;
  pugi::xml_node host_;      // the first host or router
  pugi::xml_node sub_zone_;  // the first zone, cluster or peer
  bool has_elements_ = false;
  bool has_routes_ = false;
};

}  // namespace

void check_zone_content(const pugi::xml_node& zone, ElementReader& reader)
{
  ContentCheck content(zone, reader);
  for (const auto& child : zone.children()) {
    if (child.type() != pugi::node_element) continue;
    if (const auto fault = content.fault_of(child)) {
      reader.add_fault(child, *fault);
      return;
    }
  }
}

}  // namespace isobar::sim

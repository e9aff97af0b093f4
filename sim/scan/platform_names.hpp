#pragma once

#include "core/units.hpp"
#include "sim/scan/xml_element.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar::sim {

/// The names that a platform file has defined so far, for checks of duplicates and of what routes refer to.
class PlatformNames {
 public:
  enum class NetpointKind { Host, Router, Zone };
  struct Link {
    int line;
    bool split_duplex;
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  /// Lines of the routes of one zone, by the numbers of their ends.
  using RouteLines = std::unordered_map<std::uint64_t, int>;

  /// Faults go to `reader`, which must outlive this.
  explicit PlatformNames(ElementReader& reader) : reader_(reader) {}

  void add_netpoint(const pugi::xml_node& node, const std::string& name, NetpointKind kind);
  void add_link(const pugi::xml_node& node, const std::string& name, Seconds latency, BytesPerSecond bandwidth,
                bool split_duplex);
  /// Adds the id of a cluster whose links SimGrid names, each beginning with the id and "_".
  void add_topology(const std::string& id);

  bool has_host(const std::string& name) const;
  /// Finds a link that an element of the file defines; null without one.
  const Link* find_link(const std::string& name) const;
  /// Names of the SimGrid links that a link of the file becomes.
  std::vector<std::string> parts_of_link(const std::string& name) const;

  /// Checks a route of any kind: its ends, its gateways, its links, and whether it is new among `routes`.
  void check_route(const pugi::xml_node& node, RouteLines& routes);
  void check_host_link(const pugi::xml_node& node);

 private:
  struct Netpoint {
    NetpointKind kind;
    int line;
    std::uint64_t number;
  };

  bool is_of_topology(const std::string& link) const;
  bool knows_link(const std::string& name) const;
  void check_route_is_new(const pugi::xml_node& node, RouteLines& routes);
  void check_route_link(const pugi::xml_node& route, const pugi::xml_node& part);

  ElementReader& reader_;
  std::unordered_map<std::string, Netpoint> netpoints_;
  std::unordered_map<std::string, Link> links_;
  std::set<std::string> topologies_;  // prefixes of their links, none of which begins with another
};

}  // namespace isobar::sim

#pragma once

#include "core/units.hpp"
#include "sim/platform/xml_element.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar::sim {

/// The names of a platform file, in the order of the file: what is taken, and what routes may speak of.
class PlatformNames {
 public:
  enum class NetpointKind { Host, Router, Zone };
  struct Link {
    int line;
    bool split_duplex;
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  /// The lines of the routes of one zone, by the numbers of both ends.
  using RouteLines = std::unordered_map<std::uint64_t, int>;

  /// Faults go to `reader`, which must outlive this.
  explicit PlatformNames(ElementReader& reader) : reader_(reader) {}

  void add_netpoint(const pugi::xml_node& node, const std::string& name, NetpointKind kind);
  void add_link(const pugi::xml_node& node, const std::string& name, Seconds latency, BytesPerSecond bandwidth,
                bool split_duplex);
  /// The id of a cluster whose links SimGrid names, all with the id and "_" before them.
  void add_topology(const std::string& id);

  bool has_host(const std::string& name) const;
  /// A link that the file writes out, or null.
  const Link* find_link(const std::string& name) const;
  /// The links of SimGrid that a written link stands for.
  std::vector<std::string> parts_of_link(const std::string& name) const;

  /// A route of any kind: its ends, its gateways, its links, and whether it is new among `routes`.
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
  std::set<std::string> topologies_;  // what their links begin with, none the beginning of another
};

}  // namespace isobar::sim

#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// The zones and clusters of a platform file, by their index in it, and what is directly in each.
class ZoneTree {
 public:
  void add_zone(const std::string& name, std::optional<std::size_t> parent);
  void add_host(const std::string& name, std::size_t zone);
  void add_router(const std::string& name, std::size_t zone);

  /// The zone that a gateway of `zone` is directly in, if that is a zone inside `zone` which does not hold all hosts of
  /// it. Names that the tree lacks have none.
  std::optional<std::string> inner_zone_of_gateway(const std::string& zone, const std::string& gateway) const;

 private:
  struct Zone {
    std::string name;
    std::optional<std::size_t> parent;
    std::size_t hosts = 0;         // directly in it
    std::size_t hosts_within = 0;  // also in the zones inside it
  };
  std::vector<Zone> zones_;
  std::map<std::string, std::size_t> index_of_zone_;
  std::map<std::string, std::size_t> zone_of_;  // of hosts and routers
};

}  // namespace isobar::sim

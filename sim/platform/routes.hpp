#pragma once

#include "core/cluster/cluster.hpp"
#include "core/units.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace simgrid::s4u {
class Host;
class Link;
}  // namespace simgrid::s4u

namespace isobar::sim {

struct PlatformScan;

/// A route from one host to another with the nominal values of the platform file, whatever profiles have changed.
struct Route {
  std::vector<simgrid::s4u::Link*> links;  ///< in order; a link may occur twice
  Seconds latency;                         ///< one way
  BytesPerSecond bandwidth;                ///< of the narrowest link; infinite without links
  BytesPerSecond rate_cap;                 ///< flows x window / round-trip time; infinite where no link has a window

  /// What a transfer gets over it.
  Path path() const { return {latency, std::min(bandwidth, rate_cap)}; }
  /// Whether SimGrid has no route: no link and no latency.
  bool missing() const { return links.empty() && latency.value == 0; }
};

/// The routes of the platform that is loaded into this process.
class Routes {
 public:
  /// Takes windows and profiles from the scan. Call after the platform is loaded.
  explicit Routes(const PlatformScan& scan);

  /// Looks a route up in SimGrid, once (twice where a link has a window): 1 us in most zones, 100 us in Dijkstra zones.
  Route between(const simgrid::s4u::Host& from, const simgrid::s4u::Host& to) const;
  /// The current latency of a route, as its profiles have set it.
  Seconds latency_now(const Route& route) const;
  /// The bandwidth that a route would have if the link `name` had `factor` times its bandwidth.
  BytesPerSecond bandwidth_with(const Route& route, const std::string& name, double factor) const;
  /// The links of a route, each once. The names are the platform's.
  std::vector<SharedLink> shared_links(const Route& route) const;
  /// Whether the link has a profile for its bandwidth or latency.
  bool has_profile(const simgrid::s4u::Link& link) const { return nominal_.count(&link) > 0; }

 private:
  struct Nominal {
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  Seconds latency(const simgrid::s4u::Host& from, const simgrid::s4u::Host& to,
                  std::vector<simgrid::s4u::Link*>& links) const;
  BytesPerSecond nominal_bandwidth(const simgrid::s4u::Link* link) const;
  BytesPerSecond share(const Route& route, const simgrid::s4u::Link* link) const;

  std::unordered_map<const simgrid::s4u::Link*, Nominal> nominal_;  // of links with a profile
  std::unordered_map<const simgrid::s4u::Link*, Bytes> in_flight_;  // flows x window, of links with a window
};

}  // namespace isobar::sim

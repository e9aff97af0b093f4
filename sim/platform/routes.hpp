#pragma once

#include "core/units.hpp"

#include <string>
#include <unordered_map>
#include <vector>

namespace simgrid::s4u {
class Host;
class Link;
}  // namespace simgrid::s4u

namespace isobar::sim {

struct PlatformScan;

/// What a transfer meets on its way from one host to another, by the nominal values of the platform file: a profile
/// that has already changed a link changes nothing here.
struct Route {
  std::vector<simgrid::s4u::Link*> links;  ///< in order; a link may come twice
  Seconds latency;                         ///< one way
  BytesPerSecond bandwidth;                ///< of the narrowest link; infinite without links
  BytesPerSecond rate_cap;                 ///< flows x window / round-trip time; infinite where no link has a window

  /// No link and no latency: SimGrid has no route.
  bool missing() const { return links.empty() && latency.value == 0; }
};

/// The routes of the platform that is loaded into this process.
class Routes {
 public:
  /// Reads what the scan knows of windows and profiles. Call after the platform is loaded.
  explicit Routes(const PlatformScan& scan);

  /// One look-up in SimGrid (two where a link has a window): 1 us in most zones, 100 us in Dijkstra zones.
  Route between(const simgrid::s4u::Host& from, const simgrid::s4u::Host& to) const;
  /// The latency of a route as profiles have it at this moment.
  Seconds latency_now(const Route& route) const;
  /// The bandwidth of a route if the link of this name had `factor` times its own.
  BytesPerSecond bandwidth_with(const Route& route, const std::string& name, double factor) const;
  /// Whether a profile sets its bandwidth or latency.
  bool has_profile(const simgrid::s4u::Link& link) const { return nominal_.count(&link) > 0; }

 private:
  struct Nominal {
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  Seconds latency(const simgrid::s4u::Host& from, const simgrid::s4u::Host& to,
                  std::vector<simgrid::s4u::Link*>& links) const;
  BytesPerSecond share(const Route& route, const simgrid::s4u::Link* link) const;

  std::unordered_map<const simgrid::s4u::Link*, Nominal> nominal_;  // of links with a profile
  std::unordered_map<const simgrid::s4u::Link*, Bytes> in_flight_;  // flows x window, of links that have one
};

}  // namespace isobar::sim

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// A cluster seen from far: its sites, and what lies between those that a plan sends between.
struct SiteMap {
  struct Site {
    std::string name;                  ///< devices that name none are of one site, named as the cluster
    std::vector<std::size_t> devices;  ///< in the order of the platform; none at the data server's
  };
  /// Between two sites, both ways.
  struct Connection {
    std::size_t a = 0;  ///< sites, a < b
    std::size_t b = 0;
    /// That transfers of the plan pass, each once, less those that one device alone uses for whatever it sends and
    /// receives; where these are all, they count.
    std::vector<std::string> links;
    Path path;  ///< of the first such transfer
  };

  std::vector<Site> sites;              ///< in the order of their first device; the data server's last
  std::vector<Connection> connections;  ///< in the order of the pipeline
  std::vector<std::size_t> site_of;     ///< by endpoint
  std::vector<std::size_t> device_of;   ///< by stage; then the data server, if there is one
  /// By stage: the links that lie on all ways of its device that were looked at, to a device of its own site and to one
  /// of another. None where each way has links of its own.
  std::vector<std::vector<std::string>> own_links;
};

/// O(devices + stages x links of a route).
SiteMap site_map_of(const Plan& plan, const Cluster& cluster);

}  // namespace isobar::results

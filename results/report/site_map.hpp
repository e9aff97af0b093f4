#pragma once

#include "core/cluster/cluster.hpp"
#include "core/plan/plan.hpp"
#include "core/program/collective.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// Overview of a cluster: its sites, and the connections between sites that a plan uses.
struct SiteMap {
  struct Site {
    std::string name;                  ///< devices without a site share one, named after the cluster
    std::vector<std::size_t> devices;  ///< in the order of the platform; empty for the data server
  };
  /// Connection between two sites, both directions.
  struct Connection {
    std::size_t a = 0;  ///< sites, a < b
    std::size_t b = 0;
    /// Links that transfers of the plan pass, each once, without those that all traffic of one device passes. If there
    /// are no others, those are listed.
    std::vector<std::string> links;
    Path path;  ///< of the first such transfer
  };

  std::vector<Site> sites;              ///< in the order of their first device; the data server's last
  std::vector<Connection> connections;  ///< in the order of the pipeline, then of the replicas that add up gradients
  std::vector<std::size_t> site_of;     ///< by endpoint
  std::vector<std::size_t> device_of;   ///< by rank, the data server last
  /// By rank, without the data server: the links common to all examined routes of its device, to a device of its own
  /// site and to one of another site. Empty where no link is common.
  std::vector<std::vector<std::string>> own_links;
};

/// The map of a cluster for a plan. O(devices + pairs of replicas that meet x links of a route).
SiteMap site_map_of(const Plan& plan, const Cluster& cluster);

}  // namespace isobar::results

#pragma once

#include "core/cluster/cluster.hpp"
#include "sim/platform/routes.hpp"
#include "sim/scan/prescan.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// The network of a cluster by SimGrid's routes. Paths are looked up on demand and, up to 4,097 endpoints, cached;
/// shared links up to 513.
/// For one thread only: neither the cache nor SimGrid is safe for several.
class SimGridNetwork : public Network {
 public:
  /// Endpoints are `hosts` in their order; the platform must be loaded into the engine.
  SimGridNetwork(const std::vector<const ScannedHost*>& hosts, std::shared_ptr<const Routes> routes);

  Path path(std::size_t from, std::size_t to) const override;
  std::vector<std::string> links(std::size_t from, std::size_t to) const override;
  Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const override;
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override;

  /// Empties the cache. Call after links have changed.
  void forget_paths() const
  {
    paths_.clear();
    shared_links_.clear();
  }

 private:
  Route route(std::size_t from, std::size_t to) const;
  Path find(std::size_t from, std::size_t to) const;

  std::vector<const simgrid::s4u::Host*> hosts_;
  std::shared_ptr<const Routes> routes_;
  mutable std::vector<Path> paths_;                                           // from x endpoints + to
  mutable std::vector<std::optional<std::vector<SharedLink>>> shared_links_;  // likewise
};

}  // namespace isobar::sim

#pragma once

#include "core/cluster/cluster.hpp"
#include "tests/support/instances.hpp"

#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

/// Clusters whose transfers share links.
namespace isobar::testing_support {

/// Nodes of some devices each. Pairs of a node have a path of their own; all others share the trunk.
class SharedTrunk : public Network {
 public:
  SharedTrunk(std::size_t devices_per_node, Path within, Path trunk)
      : devices_per_node_(devices_per_node), within_(within), trunk_(trunk)
  {
  }

  Path path(std::size_t from, std::size_t to) const override { return is_within(from, to) ? within_ : trunk_; }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override
  {
    if (!is_within(from, to)) return {name_};
    return {"link " + std::to_string(from) + " " + std::to_string(to)};
  }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    if (is_within(from, to)) return {};
    return {{name_, trunk_.bandwidth}};
  }

 private:
  bool is_within(std::size_t from, std::size_t to) const { return from / devices_per_node_ == to / devices_per_node_; }

  std::size_t devices_per_node_;
  Path within_;
  Path trunk_;
  std::string name_ = "trunk";
};

/// A random cluster of two nodes with devices of two speeds, between which one trunk lies.
inline Cluster random_nodes(std::mt19937_64& random, std::size_t devices_per_node, double memory)
{
  std::uniform_real_distribution<double> unit(0, 1);
  const std::vector<double> speeds = {1 + 3 * unit(random), 1 + 3 * unit(random)};
  std::vector<double> of_devices(2 * devices_per_node);
  for (double& speed : of_devices) speed = speeds[random() % 2];
  Cluster result = cluster(of_devices, {}, memory);
  const Path within{Seconds(0.01 * unit(random)), BytesPerSecond(5 + 5 * unit(random))};
  const Path trunk{Seconds(0.1 * unit(random)), BytesPerSecond(1 + 4 * unit(random))};
  result.network = std::make_shared<SharedTrunk>(devices_per_node, within, trunk);
  return result;
}

}  // namespace isobar::testing_support

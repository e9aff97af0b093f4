#include "core/cluster/nodes.hpp"

#include <algorithm>

namespace isobar {

namespace {

constexpr double nearly_all = 1 - 1e-9;

/// Those of `others` in the node of `first`.
std::vector<std::size_t> neighbours_of(const Cluster& cluster, std::size_t first,
                                       const std::vector<std::size_t>& others)
{
  std::vector<std::size_t> found;
  const auto& machine = cluster.devices[first].machine;
  if (machine) {
    std::copy_if(others.begin(), others.end(), std::back_inserter(found), [&](std::size_t other) {
      const auto& theirs = cluster.devices[other].machine;
      return theirs && theirs->machine == machine->machine;
    });
    return found;
  }
  BytesPerSecond largest;
  for (std::size_t other = 0; other < cluster.devices.size(); ++other) {
    if (other != first) largest = std::max(largest, cluster.path(first, other).bandwidth);
  }
  std::copy_if(others.begin(), others.end(), std::back_inserter(found), [&](std::size_t other) {
    return !cluster.devices[other].machine && cluster.path(first, other).bandwidth >= largest * nearly_all;
  });
  return found;
}

}  // namespace

std::vector<std::vector<std::size_t>> nodes_of(const Cluster& cluster)
{
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) left.push_back(i);
  std::vector<std::vector<std::size_t>> nodes;
  while (!left.empty()) {
    const std::size_t first = left.front();
    left.erase(left.begin());
    std::vector<std::size_t> node = {first};
    for (const std::size_t other : neighbours_of(cluster, first, left)) {
      node.push_back(other);
      left.erase(std::find(left.begin(), left.end(), other));
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace isobar

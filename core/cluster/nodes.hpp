#pragma once

#include "core/cluster/cluster.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// The devices of each node, in the order of their first devices: those of one machine where the platform names
/// machines, else those that the node's first device reaches at the largest bandwidth of all its paths. So all devices
/// behind one switch are a node. O(nodes · devices) paths.
std::vector<std::vector<std::size_t>> nodes_of(const Cluster& cluster);

}  // namespace isobar

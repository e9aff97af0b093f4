#pragma once

#include "core/cluster/cluster.hpp"

namespace isobar {

/// Factors on the speeds and paths of a cluster; all are positive.
struct ClusterFactors {
  double speed = 1;      ///< of devices, in all dtypes
  double bandwidth = 1;  ///< of every path, also between devices and their machines
  double latency = 1;    ///< likewise

  bool operator==(const ClusterFactors&) const = default;
};

/// The cluster with these factors. A bandwidth that is limited by windows follows `bandwidth`, too, whatever the
/// latency. O(devices).
Cluster scaled(const Cluster& cluster, const ClusterFactors& factors);

}  // namespace isobar

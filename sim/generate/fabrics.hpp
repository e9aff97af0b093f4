#pragma once

#include "core/units.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

/// How the GPUs of a node are joined: each to a switch (NVSwitch), each pair by links of its own (NVLink), or each to
/// the PCI Express of its host.
enum class Topology { Switch, Mesh, Pcie };

/// Names of topologies as machine files write them, in the order of the enumerators.
const std::vector<std::string>& topology_names();

/// What transfers between GPUs attain over a kind of link, as NCCL makes them.
struct Fabric {
  std::string name;          ///< such as "NVSwitch of A100-SXM4"
  double attained_fraction;  ///< of the nominal bandwidth, per direction; over both together if `shares_directions`
  Seconds latency;           ///< of a message from one GPU to another: a step of a ring
  Seconds start;             ///< of a collective, before its first step
  bool shares_directions;    ///< what a GPU sends and what it receives share one bandwidth
  std::string source;
  double ring_gain = 1;  ///< what a GPU of a ring sends, over what one transfer attains; 1 where no table says more
};

/// The fabric inside a node of GPUs of a type: that of its family if it was measured, else one of the topology.
const Fabric& inside_fabric(std::string_view device_type, Topology topology);
/// The fabric between nodes.
const Fabric& outside_fabric();

/// What is attained of a nominal bandwidth: the fraction of the fabric of what links of this kind are built for, and
/// never more than is `given`. So a value that is already an attained one stays as it is.
BytesPerSecond attained(const Fabric& fabric, BytesPerSecond given, BytesPerSecond built_for);
/// The least line rate of Ethernet and InfiniBand that is not below `bandwidth`; `bandwidth` above all of them.
BytesPerSecond line_rate(BytesPerSecond bandwidth);

}  // namespace isobar::sim

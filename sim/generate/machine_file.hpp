#pragma once

#include "core/compute/calibration.hpp"
#include "core/units.hpp"
#include "sim/generate/fabrics.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::sim {

/// A bandwidth of a machine file.
struct LinkBandwidth {
  BytesPerSecond value;      ///< per direction
  bool is_measured = false;  ///< attained by transfers; else nominal
};

/// How the GPUs of a node reach each other.
struct InsideOfNode {
  Topology topology = Topology::Switch;
  LinkBandwidth bandwidth;              ///< of each GPU; in a mesh, of each ordered pair
  std::optional<Seconds> latency = {};  ///< of a message; none: that of the fabric
};

/// How the GPUs of a node reach other nodes: GPU i of n through NIC ⌊i · nics / n⌋.
struct OutsideOfNode {
  std::size_t nics = 1;
  LinkBandwidth bandwidth;              ///< of each NIC
  std::optional<Seconds> latency = {};  ///< of a message; none: that of the fabric
};

/// Nodes with equal GPUs.
struct NodeGroupOfMachine {
  std::size_t count = 1;
  std::size_t gpus_per_node = 1;
  std::string device;                    ///< a name of a type (core/cluster/device_types.hpp)
  std::optional<InsideOfNode> inside;    ///< present if a node has several GPUs
  std::optional<OutsideOfNode> outside;  ///< present if the machine has several nodes
  compute::LinkFactors links = {};       ///< on what these links attain
};

/// What is known of a real machine (docs/formats/machine.md).
struct MachineFile {
  std::string name;                        ///< of the file, without folder and ending
  std::string command;                     ///< that makes the machine's platform file
  std::vector<NodeGroupOfMachine> groups;  ///< in the order of the devices
  std::vector<std::string> notes;          ///< one line each, for people: what the file says that is unknown
};

/// Keys and values that replace those of a machine file: `nodes`, `gpus_per_node` and `count_DEVICE`.
using MachineOverrides = std::vector<std::pair<std::string, std::string>>;

/// Most GPUs of a node: its routes are as many as their square.
inline constexpr std::size_t most_gpus_of_node = 256;

/// Reads a machine file (YAML). O(size of the file).
/// @throws InputError with every fault of the file, "file:line: key: what is wrong; what to write"; for an override
/// "place: key: …"; and for a machine of more than `most_devices` GPUs.
MachineFile read_machine(const std::string& file, const MachineOverrides& overrides = {},
                         const std::string& place = "platform_overrides");

/// Gives the nodes of the calibration's device type its factors of links, and the machine's command its option
/// --system.
/// @throws InputError "--system: …" for a machine without nodes of that type.
void calibrate(MachineFile& machine, const compute::Calibration& calibration);

/// The XML text of the machine as a SimGrid platform, with devices n0g0, n0g1, …, n1g0, … in the order of the file.
///
/// All devices are hosts of one star, each with its NIC as its link, so that a route takes O(1) to look up; GPUs of one
/// node have routes of their own that pass by the star. Bandwidths and latencies are those that NCCL attains
/// (sim/generate/fabrics.hpp). O(nodes · GPUs of a node²). Deterministic.
std::string machine_to_xml(const MachineFile& machine);

}  // namespace isobar::sim

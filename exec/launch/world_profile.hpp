#pragma once

#include "core/compute/device_profile.hpp"
#include "exec/launch/link_probe.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Devices of a run, by rank, and the links between each pair of them.
struct WorldProfile {
  std::vector<DeviceProfile> devices;         ///< ranks on one device have equal profiles and equal parts of its memory
  std::vector<std::size_t> first_in_machine;  ///< of each rank: the first rank in the same machine
  std::vector<LinkMeasurement> links;  ///< every pair in both directions, with 1, 2, 4, … and the most connections
};

/// What measures the device of this process and, unless null, the machine that it is in.
struct Measurements {
  std::function<DeviceProfile()> device;
  std::function<MachineProfile()> machine;
};

/// Measures this machine as `ranks` devices, with its loopback interface as the link between each pair of them.
WorldProfile measure_this_machine(std::size_t ranks, std::size_t most_connections, const Measurements& measure);

/// One rank's part in measuring several machines. `ranks`: where all ranks listen. Among the ranks of a machine with
/// the same `device` ("cpu", "cuda:0"), the first one measures it; then, for each device of a machine in turn, the
/// machine; then the links, one at a time. Overrides the run id, the connections and the deadline of `options`.
/// @returns the profile on rank 0, nullopt on the others.
/// @throws as TcpWorld and TcpLink do.
std::optional<WorldProfile> measure_world(std::size_t rank, const std::vector<Endpoint>& ranks,
                                          std::size_t most_connections, const std::string& device,
                                          const Measurements& measure, TcpOptions options);

/// SimGrid platform of these devices, as `isobar run --emulate --flows` makes them: device i is slower than its machine
/// by the factor `slowdowns[i]`, and links are those measured with `connections`. Ranks are hosts "rank-0", "rank-1",
/// …. A machine that was measured is a host, "machine-2" if rank 2 is the first in it, by that rank's profile. It has a
/// link of its own to each of its devices and another back. No factor slows it.
std::string platform_of(const WorldProfile& world, const std::vector<double>& slowdowns, std::size_t connections);

/// All measurements of all links as CSV: a header, then a line for each size (docs/formats/profile.md).
std::string links_to_csv(const std::vector<LinkMeasurement>& links);

}  // namespace isobar::exec

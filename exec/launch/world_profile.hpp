#pragma once

#include "core/model/device_profile.hpp"
#include "exec/net/link_probe.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// The devices of a run, rank by rank, and what lies between each two.
struct WorldProfile {
  std::vector<DeviceProfile> devices;  ///< ranks on the same device have the same, and its memory in equal parts
  std::vector<LinkMeasurement> links;  ///< every pair both ways, with 1, 2, 4, … and the most flows
};

using MeasureDevice = std::function<DeviceProfile()>;

/// This machine as `ranks` devices, with what its loopback interface does between each two of them.
WorldProfile measure_this_machine(std::size_t ranks, std::size_t most_flows, const MeasureDevice& measure_device);

/// One rank's part in measuring machines that are elsewhere: `ranks` is where all listen. Of the ranks of a machine
/// with the same `device` ("cpu", "cuda:0") the first measures it, then the links are measured one at a time. Rank 0
/// gets the whole, the others nothing. Of the options, the word, the flows and the deadline are its own.
/// @throws as TcpWorld and TcpLink do.
std::optional<WorldProfile> measure_world(std::size_t rank, const std::vector<Endpoint>& ranks, std::size_t most_flows,
                                          const std::string& device, const MeasureDevice& measure_device,
                                          TcpOptions options);

/// The SimGrid platform of these devices with the links of `flows` flows, device i so many times slower than its
/// machine: what `isobar run --emulate --flows` makes of it. Ranks are hosts "rank-0", "rank-1", ….
std::string platform_of(const WorldProfile& world, const std::vector<double>& slowdowns, std::size_t flows);

/// Every measurement of every link: a header, then a line for each size (docs/formats.md).
std::string links_to_csv(const std::vector<LinkMeasurement>& links);

}  // namespace isobar::exec

#pragma once

#include "core/cluster/cluster.hpp"
#include "sim/platform/endpoints.hpp"
#include "sim/platform/platform_check.hpp"
#include "sim/platform/routes.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// The machine of a host of the platform file. Its first disk with a capacity is its disk.
Machine machine_of(const ScannedHost& host);

/// Finds the machine of each device, by index of Endpoints::devices: the one that its prop `host` names, else the
/// nearest one. That is the one with the least latency there and back; of these, that with the largest bandwidth; of
/// these, the first in the file. None for a device that has no route to a machine and back. The platform must be
/// loaded. O(devices x machines) look-ups of routes for devices without the prop.
/// @throws InputError "file:line: host NAME: …" when there is no route to the machine that the prop names, or one out
/// of range.
std::vector<std::optional<MachineLink>> machine_links(const std::string& file, const Endpoints& endpoints,
                                                      const Routes& routes, const ExpectFault& expect_fault);

/// The same link by the routes as they are now, after links have changed. O(1).
MachineLink current_link(const Routes& routes, const Cluster& cluster, const Device& device);

}  // namespace isobar::sim

#pragma once

#include "core/cluster/cluster.hpp"
#include "sim/platform/platform.hpp"
#include "sim/platform/routes.hpp"

#include <optional>
#include <string>

namespace isobar::sim {

/// Multiplies the speed (in all dtypes) or the memory of one device, of all without a `name`. O(devices).
/// @throws InputError for a name that no device has, and for a result that is out of range.
void scale_devices(Cluster& cluster, Property property, double factor, const std::optional<std::string>& name);

/// Multiplies the rates at which one machine updates, or all machines and the systems measured in them without a
/// `name`. O(machines + systems).
/// @throws InputError for a name that no machine has, and for a result that is out of range.
void scale_machines(Cluster& cluster, double factor, const std::optional<std::string>& name);

/// Multiplies the bandwidth or the latency of one link of the engine, of all without a `name`. O(links).
/// @throws InputError for a name that no link has, a link with a profile, and a result that is out of range. The
/// message begins with the cluster's name.
void scale_links(const Cluster& cluster, const Routes& routes, Property property, double factor,
                 const std::optional<std::string>& name);

}  // namespace isobar::sim

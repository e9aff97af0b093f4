#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/round_time.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// The rates at which a device of a plan uses the machine that it is in: those measured of the plan's system where
/// the platform has them, else the platform's. Requires a device with a machine.
MachineRates machine_rates(const Plan& plan, const Device& device, const Cluster& cluster);
/// The same constants of the plan's system; without any where the platform has none.
MeasuredSystem measured_system(const Plan& plan, const Cluster& cluster);

/// The indices in a cluster of a plan's devices, by rank (devices_of). O(devices of both).
/// @throws std::logic_error for a device that the cluster lacks.
std::vector<std::size_t> indices_of_devices(const Plan& plan, const Cluster& cluster);

/// Work of the update of a layer by the processor of a machine, in the units of its rate: parameters x
/// update_flops_per_parameter. What was measured of updates on a device (Layer::update) does not count.
Flops machine_update_work(const Workload& workload, const Layer& layer);

/// The rates of a plan's ranks on a cluster: its devices, then the data server. Transfers take their path's latency and
/// bandwidth, or no time if they are free (Goal::has_free_transfers). They share links as the simulator lets them.
/// Keeps no reference to its arguments.
/// @throws std::logic_error for a device that the cluster lacks.
PlayerRates nominal_rates(const Plan& plan, const Cluster& cluster);

/// What lies between the endpoints of a cluster. Refers to it; it must outlive the network.
EndNetwork network_of(const Cluster& cluster);

}  // namespace isobar

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"

namespace isobar {

/// The rates of a plan's ranks on a cluster: its devices, then the data server. Transfers take their path's latency and
/// bandwidth, or no time if they are free (Goal::has_free_transfers). Keeps no reference to its arguments.
/// @throws std::logic_error for a device that the cluster lacks.
PlayerRates nominal_rates(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar

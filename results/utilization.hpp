#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"
#include "results/result.hpp"

#include <cstdint>
#include <vector>

namespace isobar::results {

/// Utilization of the devices of `stages`, each counted once, in a step of `microbatches`. `workload` is the simulated
/// one, with its recomputation; with `measured`, its work is measured time instead of operations. O(layers + stages).
Utilization utilization_of(const Workload& workload, bool measured, const Cluster& cluster,
                           const std::vector<StageMetrics>& stages, std::uint64_t microbatches, Seconds step_time);

}  // namespace isobar::results

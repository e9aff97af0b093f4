#pragma once

#include "allocators/allocator.hpp"
#include "core/cluster/cluster.hpp"
#include "core/plan/plan.hpp"

#include <functional>
#include <vector>

namespace isobar::allocators {

/// The plans of an allocator for a cluster.
using PlansOn = std::function<std::vector<Plan>(const Cluster& cluster)>;

/// Proposes plans whose stages need not fit on their devices (--offload auto).
///
/// The allocator first plans for devices that also have their part of their machine's memory and disk. Then layers of
/// each stage that its device does not hold pass through it, by the search of allocator `window` on the stage alone.
/// Cuts between neighbouring stages move as long as the predicted step gets shorter. A stage with several replicas is
/// searched on the device with the least memory. Stages of fewer than three layers, on several devices at once, on a
/// device with several stages or without a machine keep everything, and plans that then do not fit are not proposed.
/// @throws InputError as propose_windows does.
Proposals propose_offloads(const HybridProblem& problem, const PlansOn& plans_on);

}  // namespace isobar::allocators

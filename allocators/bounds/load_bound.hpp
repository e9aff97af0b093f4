#pragma once

#include "allocators/bounds/bounds.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <optional>
#include <vector>

namespace isobar::allocators {

/// The plans of a goal that a bound by loads is about.
struct LoadScope {
  bool shares_stages = false;     ///< also those with several devices for a stage
  bool takes_whole_runs = false;  ///< only those that do (core/plan/placed_shards.hpp)

  bool operator==(const LoadScope&) const = default;
};

/// A bound on the step of the plans in `scope` by the loads of their devices (docs/certificates.md), with its proof of
/// kind `load`: a device works within the step only from when its first input can have come, until its last gradient
/// can still come back to the first stage. Layers are whole, and transfers and memory count.
///
/// Devices of the same speed, memory and site are one kind. The search for multipliers is a heuristic that takes about
/// 10 ms for 96 layers and 4 kinds, in proportion to the kinds and the square of the layers; and the paths between all
/// devices are read once. On more than 2,048 devices transfers take no time. None where it finds nothing above `known`,
/// a bound, and below `step`, that of a plan; where two devices have no route; and for more than 128 kinds, or a
/// million runs of layers that fit on a kind. @throws Interrupted
std::optional<Bound> load_bound(const CostModel& cost, const Goal& goal, LoadScope scope, Seconds known, Seconds step);

/// Raises the bounds of plans that price_by_playing has priced, where load_bound finds better ones. Plans of one goal
/// and scope get the same one. Those that meet it become optimal. Stops when the process is asked to.
void raise_bounds(std::vector<Plan>& plans, const Workload& workload, const Cluster& cluster);

}  // namespace isobar::allocators

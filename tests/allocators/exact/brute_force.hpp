#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace isobar::testing_support {

/// Calls visit(stages) for every split of the chain over every subset of the devices, in their order, or in any order.
/// O(2^(layers + devices)), times devices! in any order, so only for small numbers of both.
inline void for_each_placement(std::size_t layers, std::size_t devices, bool any_order,
                               const std::function<void(const std::vector<StagePlacement>&)>& visit)
{
  std::vector<StagePlacement> stages;
  std::vector<bool> used(devices);
  const std::function<void(std::size_t, std::size_t)> extend = [&](std::size_t first, std::size_t next_device) {
    if (first == layers) {
      visit(stages);
      return;
    }
    for (std::size_t device = any_order ? 0 : next_device; device < devices; ++device) {
      if (used[device]) continue;
      used[device] = true;
      for (std::size_t last = first; last < layers; ++last) {
        stages.push_back({device, first, last});
        extend(last + 1, device + 1);
        stages.pop_back();
      }
      used[device] = false;
    }
  };
  extend(0, 0);
}

/// True when each stage fits on its device under the goal's schedule.
inline bool memory_holds(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto in_flight =
        microbatches_in_flight(require_chain_schedule(goal.schedule), stages.size() - 1 - i, goal.microbatches);
    const auto& [device, first, last] = stages[i];
    if (cost.memory(first, last, in_flight) > cost.cluster().devices[device].memory) return false;
  }
  return true;
}

/// The least objective of each goal over all placements whose memory holds; infinite where there is none.
inline std::vector<double> least_objectives(const CostModel& cost, const std::vector<Goal>& goals, bool any_order)
{
  std::vector<double> least(goals.size(), std::numeric_limits<double>::infinity());
  for_each_placement(cost.layers(), cost.devices(), any_order, [&](const std::vector<StagePlacement>& stages) {
    for (std::size_t i = 0; i < goals.size(); ++i) {
      if (memory_holds(cost, stages, goals[i])) {
        least[i] = std::min(least[i], cost.evaluate(stages, goals[i]).objective.value);
      }
    }
  });
  return least;
}

}  // namespace isobar::testing_support

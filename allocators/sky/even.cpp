#include "allocators/sky/even.hpp"

#include "allocators/memory_fit.hpp"

namespace isobar::allocators {

std::vector<std::size_t> even_counts(std::size_t layers, std::size_t devices)
{
  std::vector<std::size_t> counts(devices, layers / devices);
  for (std::size_t i = 0; i < layers % devices; ++i) ++counts[i];
  return counts;
}

std::vector<StagePlacement> stages_of_counts(const std::vector<std::size_t>& counts)
{
  std::vector<StagePlacement> stages;
  std::size_t first = 0;
  for (std::size_t device = 0; device < counts.size(); ++device) {
    if (counts[device] == 0) continue;
    stages.push_back({device, first, first + counts[device] - 1});
    first += counts[device];
  }
  return stages;
}

Placement place_evenly(const Problem& problem)
{
  const CostModel& cost = problem.cost;
  Placement placement;
  placement.stages = stages_of_counts(even_counts(cost.layers(), cost.devices()));
  placement.keeps_counts = true;
  if (auto reason = overfull_stage(cost, problem.goal, placement.stages)) {
    placement = {Outcome::Infeasible, {}, std::move(*reason), {}, {}};
  }
  return placement;
}

}  // namespace isobar::allocators

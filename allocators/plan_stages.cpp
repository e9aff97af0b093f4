#include "allocators/plan_stages.hpp"

namespace isobar::allocators {

std::vector<StagePlacement> over_layers_of(const ChainView& view, std::vector<StagePlacement> stages)
{
  for (auto& stage : stages) {
    stage.first_layer = view.first_layer[stage.first_layer];
    stage.last_layer = view.first_layer[stage.last_layer + 1] - 1;
  }
  return stages;
}

std::vector<Stage> plan_stages(const CostModel& cost, const std::vector<StagePlacement>& stages)
{
  const FlopsPerSecond reference = reference_speed(cost.cluster(), cost.workload().dtype);
  std::vector<Stage> result;
  for (const auto& [device, first, last] : stages) {
    const Device& used = cost.cluster().devices[device];
    const auto type = used.type.empty() ? std::nullopt : std::optional(used.type);
    result.push_back(stage_on({used.name, 1, reference / cost.speed(device), used.memory, type}, first, last));
  }
  return result;
}

}  // namespace isobar::allocators

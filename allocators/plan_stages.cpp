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

std::vector<StagePlacement> placement_of(const Plan& plan, const Cluster& cluster)
{
  std::vector<StagePlacement> stages;
  for (const auto& stage : plan.stages) {
    stages.push_back({cluster.device_index(stage.device()).value(), stage.first_layer, stage.last_layer});
  }
  return stages;
}

Shard shard_on(const CostModel& cost, std::size_t device)
{
  return shard_on(cost, device, reference_speed(cost.cluster(), cost.workload().dtype));
}

Shard shard_on(const CostModel& cost, std::size_t device, FlopsPerSecond reference)
{
  const Device& used = cost.cluster().devices[device];
  const auto if_any = [](const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); };
  return {used.name, 1, reference / cost.speed(device), used.memory, if_any(used.type), if_any(used.site)};
}

std::vector<Stage> plan_stages(const CostModel& cost, const std::vector<StagePlacement>& stages)
{
  std::vector<Stage> result;
  for (const auto& [device, first, last] : stages) result.push_back(stage_on(shard_on(cost, device), first, last));
  return result;
}

}  // namespace isobar::allocators

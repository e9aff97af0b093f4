#include "allocators/plan_stages.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::allocators {

std::vector<StagePlacement> over_layers_of(const ChainView& view, std::vector<StagePlacement> stages)
{
  for (auto& stage : stages) {
    stage.first_layer = view.first_layer[stage.first_layer];
    stage.last_layer = view.first_layer[stage.last_layer + 1] - 1;
  }
  return stages;
}

std::vector<StagePlacement> over_chain_of(const ChainView& view, std::vector<StagePlacement> stages,
                                          const std::string& place, const std::string& why_no_cut)
{
  const auto& first_layer = view.first_layer;  // with the end of the last
  const auto chain_layer = [&](std::size_t layer, std::size_t stage) {
    const auto found = std::lower_bound(first_layer.begin(), first_layer.end(), layer);
    if (found == first_layer.end() || *found != layer) {
      throw InputError(place, fmt::format("stages[{}]: ends before layer {}, where {}", stage, layer, why_no_cut));
    }
    return static_cast<std::size_t>(found - first_layer.begin());
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i].last_layer = chain_layer(stages[i].last_layer + 1, i) - 1;
    stages[i].first_layer = i == 0 ? 0 : stages[i - 1].last_layer + 1;
  }
  return stages;
}

std::optional<std::vector<std::size_t>> nearest_cuts(const ChainView& view,
                                                     const std::vector<std::size_t>& first_layers)
{
  const std::size_t layers = view.first_layer.size() - 1;
  if (first_layers.size() > layers) return std::nullopt;
  const auto distance = [](std::size_t a, std::size_t b) { return a > b ? a - b : b - a; };
  std::vector<std::size_t> cuts = {0};
  for (std::size_t stage = 1; stage < first_layers.size(); ++stage) {
    std::size_t cut = cuts.back() + 1;
    const std::size_t last = layers - (first_layers.size() - stage);
    while (cut < last && distance(view.first_layer[cut + 1], first_layers[stage]) <
                             distance(view.first_layer[cut], first_layers[stage])) {
      ++cut;
    }
    cuts.push_back(cut);
  }
  return cuts;
}

std::vector<StagePlacement> parts_of(const StagePlacement& stage, std::size_t count)
{
  const std::size_t layers = stage.last_layer - stage.first_layer + 1;
  count = std::min(count, layers);
  std::vector<StagePlacement> parts;
  for (std::size_t i = 0; i < count; ++i) {
    parts.push_back(
        {stage.device, stage.first_layer + i * layers / count, stage.first_layer + (i + 1) * layers / count - 1});
  }
  return parts;
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
  return {used.name,        1, reference / used.speed_at(cost.workload().dtype), used.memory, if_any(used.type),
          if_any(used.site)};
}

std::vector<Stage> plan_stages(const CostModel& cost, const std::vector<StagePlacement>& stages)
{
  std::vector<Stage> result;
  for (const auto& [device, first, last] : stages) result.push_back(stage_on(shard_on(cost, device), first, last));
  return result;
}

}  // namespace isobar::allocators

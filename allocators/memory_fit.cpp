#include "allocators/memory_fit.hpp"

#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace isobar::allocators {

Bytes stage_memory(const CostModel& cost, const Goal& goal, const StagePlacement& stage, std::size_t stages_after)
{
  return cost.memory(stage.first_layer, stage.last_layer,
                     microbatches_in_flight(require_chain_schedule(goal.schedule), stages_after, goal.microbatches));
}

std::string need_text(std::size_t first, std::size_t last, Bytes need)
{
  return first == last ? fmt::format("layer {} needs {}", first, text_of(need))
                       : fmt::format("layers {}..{} need {}", first, last, text_of(need));
}

std::optional<std::string> oversized_layer(const CostModel& cost, const Goal& goal)
{
  const auto& devices = cost.cluster().devices;
  const auto largest = std::max_element(devices.begin(), devices.end(),
                                        [](const Device& a, const Device& b) { return a.memory < b.memory; });
  for (std::size_t layer = 0; layer < cost.layers(); ++layer) {
    const Bytes need = stage_memory(cost, goal, {0, layer, layer}, 0);
    if (need <= largest->memory) continue;
    return fmt::format("{}; the largest device, {}, has {}; {} more memory there would be enough",
                       need_text(layer, layer, need), largest->name, text_of(largest->memory),
                       text_of(need - largest->memory));
  }
  return std::nullopt;
}

std::optional<int> enough_memory_percent(const std::function<bool(int percent)>& fits)
{
  constexpr int most = 100'000;
  int high = 1;
  while (!fits(high)) {
    if (high == most) return std::nullopt;
    high = std::min(2 * high, most);
  }
  int low = high / 2;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

std::string recomputation_hint(const Workload& workload, const std::function<bool(const Workload& recomputed)>& fits)
{
  if (!workload.recompute.empty() || workload.memory_model != MemoryModel::Training) return "";
  std::vector<std::size_t> all(workload.layers.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return fits(with_recomputation(workload, all)) ? "; recomputation would be enough (--recompute all)" : "";
}

bool surely_fits_in_order(const CostModel& cost, const Goal& goal)
{
  std::size_t end = cost.layers();
  std::size_t stages_after = 0;
  for (std::size_t device = cost.devices(); device-- > 0 && end > 0;) {
    const Bytes memory = cost.cluster().devices[device].memory;
    std::size_t first = end;
    while (first > 0 && stage_memory(cost, goal, {device, first - 1, end - 1}, stages_after) <= memory) --first;
    if (first < end) ++stages_after;
    end = first;
  }
  return end == 0;
}

std::optional<std::string> overfull_stage(const CostModel& cost, const Goal& goal,
                                          const std::vector<StagePlacement>& stages)
{
  std::string worst;
  std::size_t overfull = 0;
  Bytes largest_excess;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [index, first, last] = stages[i];
    const Device& device = cost.cluster().devices[index];
    const Bytes need = stage_memory(cost, goal, stages[i], stages.size() - 1 - i);
    const Bytes excess = need - device.memory;
    if (excess.value <= 0) continue;
    ++overfull;
    if (excess <= largest_excess) continue;
    largest_excess = excess;
    worst = fmt::format("device {}: {} and it has {}; {} more memory there", device.name, need_text(first, last, need),
                        text_of(device.memory), text_of(excess));
  }
  if (overfull == 0) return std::nullopt;
  if (overfull > 1)
    worst += fmt::format(", and up to that on {} other device{},", overfull - 1, overfull > 2 ? "s" : "");
  return worst + (surely_fits_in_order(cost, goal) ? " or allocator chain-dp would be enough" : " would be enough");
}

}  // namespace isobar::allocators

#include "results/device_count.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace isobar::results {

namespace {

/// The k of the formula; `speeds` descend.
std::size_t worth_by_speed(const std::vector<double>& speeds, const Goal& goal)
{
  if (goal.objective == Objective::Sequential) return 1;
  if (goal.objective == Objective::Bottleneck) return speeds.size();
  double sum = speeds.front();
  for (std::size_t k = 1; k < speeds.size(); ++k) {
    if (speeds[k] * (static_cast<double>(goal.microbatches - 1) + static_cast<double>(k)) <= sum * (1 + 1e-12))
      return k;
    sum += speeds[k];
  }
  return speeds.size();
}

/// Memory of all layers as the last stage would hold them, without buffers.
double memory_of_model(const CostModel& cost, const Goal& goal)
{
  const std::size_t end = cost.layers();
  const auto in_flight = microbatches_in_flight(require_chain_schedule(goal.schedule), 0, goal.microbatches);
  const Bytes besides_layers = cost.buffers(0) + cost.buffers(end) + cost.workspace();
  return (cost.memory(0, end - 1, in_flight) - besides_layers).value;
}

}  // namespace

DeviceCount devices_worth_using(const CostModel& cost, const Goal& goal)
{
  std::vector<std::size_t> order(cost.devices());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&cost](std::size_t a, std::size_t b) { return cost.speed(a) > cost.speed(b); });
  std::vector<double> speeds;
  for (const auto device : order) speeds.push_back(cost.speed(device).value);

  DeviceCount count;
  count.by_speed = worth_by_speed(speeds, goal);
  const double needed = memory_of_model(cost, goal);
  double memory = 0;
  for (const auto device : order) {
    const bool is_enough = count.with_memory >= count.by_speed && memory * (1 + 1e-9) >= needed;
    if (is_enough) break;
    memory += cost.cluster().devices[device].memory.value;
    ++count.with_memory;
  }
  return count;
}

}  // namespace isobar::results

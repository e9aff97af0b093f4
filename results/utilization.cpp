#include "results/utilization.hpp"

#include <set>
#include <string_view>

namespace isobar::results {

namespace {

/// Forward and backward work of one micro-batch, without recomputation.
Flops model_work(const Workload& workload)
{
  Flops sum;
  for (const auto& layer : workload.layers) {
    sum += layer.forward + layer.backward;
    if (!layer.experts) continue;
    const double uneven = 1 - 1 / layer.experts->imbalance;  // of others' tokens
    sum = sum - uneven * (layer.experts->forward + layer.experts->backward);
  }
  for (const auto layer : workload.recompute) sum = sum - workload.layers[layer].forward;
  return sum;
}

}  // namespace

Utilization utilization_of(const Workload& workload, bool measured, const Cluster& cluster,
                           const std::vector<StageMetrics>& stages, std::uint64_t microbatches, Seconds step_time)
{
  Utilization utilization;
  if (stages.empty() || step_time <= Seconds(0)) return utilization;
  const auto count = static_cast<double>(microbatches);
  if (workload.sequence > 1) {
    const auto tokens = samples_of_microbatch(workload) * static_cast<double>(workload.sequence);
    utilization.tokens_per_s = count * tokens / step_time.value;
  }
  FlopsPerSecond peak;
  Seconds idle;
  std::set<std::string_view> devices;
  for (const auto& stage : stages) {
    if (!devices.insert(stage.device).second) continue;
    idle += stage.idle;
    peak += cluster.devices[cluster.device_index(stage.device).value()].speed_at(workload.dtype);
  }
  utilization.bubble_fraction = idle.value / (step_time.value * static_cast<double>(devices.size()));
  if (!measured) utilization.mfu_fraction = count * model_work(workload).value / (peak.value * step_time.value);
  return utilization;
}

}  // namespace isobar::results

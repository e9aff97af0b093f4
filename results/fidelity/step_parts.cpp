#include "results/fidelity/step_parts.hpp"

#include "core/compute/measurements.hpp"
#include "core/compute/pricing.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"

#include <algorithm>

namespace isobar::results {

void StepTimes::record(const TraceEvent& event)
{
  if (event.step != step_) return;
  RankTimes& rank = ranks_[event.rank];
  const Payload payload = event.instruction.payload;
  const bool is_of_parameters =
      payload == Payload::ParameterGradient || payload == Payload::TiedGradient || payload == Payload::Parameter;
  if (is_collective(event.instruction.opcode) && is_of_parameters) rank.sums.emplace_back(event.begin, event.end);
  if (!is_computation(event.instruction.opcode)) return;
  const Seconds time = event.end - event.begin;
  if (event.instruction.opcode == Opcode::Update) {
    rank.updates += time;
    return;
  }
  rank.busy += time;
  rank.last_backward = std::max(rank.last_backward, event.end);
}

void StepTimes::memory_changed(std::size_t rank, Tier tier, Seconds /*time*/, Bytes memory)
{
  if (tier == Tier::Device) peaks_[rank] = std::max(peaks_[rank], memory);
}

std::vector<PipelineStage> pipeline_of(const Plan& plan, const compute::AsTrained& trained)
{
  const auto& layers = trained.workload().layers;
  std::vector<PipelineStage> stages;
  const auto number = pipeline_stages(plan);
  const bool divides_some = is_partly_divided(plan.stages);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const auto& shards = stage.replicas.front().shards;
    const bool is_shared = divides_some && shards.size() > 1;
    for (const Shard& shard : shards) {
      auto found = std::ranges::find(stages, shard.device, &PipelineStage::device);
      if (found == stages.end()) {
        found = stages.insert(found, {shard.device, divides_some ? 1 : shards.size(), stage.replicas.size()});
      }
      if (!is_shared && (i == 0 || number[i] != number[i - 1])) ++found->parts;
      found->passes += trained.parts()[i];
      const double own = is_shared ? 1 / static_cast<double>(shards.size()) : 1;
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        found->work += own * (layers[layer].forward + layers[layer].backward);
      }
      if (!divides_some) break;
    }
  }
  return stages;
}

Seconds time_at_peak(const Plan& plan, const std::vector<PipelineStage>& stages, const Workload& workload,
                     const Cluster& cluster)
{
  const auto& measurements = compute::measurements_of(workload);
  Seconds sum;
  Seconds most;
  for (const auto& stage : stages) {
    const auto device = measurements.constants_of(cluster.devices[cluster.device_index(stage.device).value()].type);
    const FlopsPerSecond peak = workload.recipe == ProductRecipe::None
                                    ? device.peak(workload.dtype, workload.has_tf32_products)
                                    : device.peak(workload.recipe).value();
    const Seconds time = stage.work / (static_cast<double>(stage.shards) * peak);
    sum += time;
    most = std::max(most, time);
  }
  const double of_microbatch = samples_of_microbatch(workload);
  const double samples =
      plan.samples ? static_cast<double>(*plan.samples) : static_cast<double>(plan.goal.microbatches) * of_microbatch;
  const double microbatches = samples / of_microbatch / static_cast<double>(stages.front().replicas);
  return microbatches * most + (sum - most) / static_cast<double>(stages.front().parts);
}

RowParts parts_of(const Plan& plan, const std::vector<PipelineStage>& stages, const std::vector<RankTimes>& ranks,
                  Seconds begin, Seconds step)
{
  const auto devices = devices_of(plan);
  const auto times_of = [&](const PipelineStage& stage) -> const RankTimes& {
    return ranks[static_cast<std::size_t>(std::ranges::find(devices, stage.device) - devices.begin())];
  };
  const auto& stage = *std::ranges::max_element(stages, {}, [&](const auto& each) { return times_of(each).busy; });
  const RankTimes& times = times_of(stage);
  const auto microbatches = static_cast<double>(plan.goal.microbatches) / static_cast<double>(stage.replicas);
  const auto& [products, attention, memory_bound, launch, tensor, pipeline] = stage.passes;
  RowParts parts;
  parts.products = microbatches * products;
  parts.attention = microbatches * attention;
  parts.memory_bound = microbatches * memory_bound;
  parts.launch = microbatches * launch;
  parts.tensor = microbatches * tensor;
  parts.pipeline = microbatches * pipeline;
  const Seconds last_backward = times.last_backward - begin;
  parts.update = times.updates;
  // What follows the last backward pass are sums of gradients, and other stages' passes.
  const Seconds tail = step - last_backward - times.updates;
  parts.data = stage.replicas > 1 ? std::min(std::max(tail, Seconds(0)), times.sums_after_passes()) : Seconds(0);
  const Seconds idle = last_backward - microbatches * stage.passes.all();
  if (stages.size() == 1) {
    // Gathers of parameters, and what they slow down; else collectives among shards, and among replicas for passes,
    // that computations do not hide.
    const bool gathers = plan.sync.sharded == Sharding::Parameters;
    const bool meets_for_passes = stage.shards > 1 || has_exchanges(plan);
    (meets_for_passes && !gathers ? parts.tensor : parts.data) += idle + tail - parts.data;
    return parts;
  }
  parts.bubble = tail - parts.data;
  if (idle < Seconds(0)) {  // a step begins before the one before has ended
    parts.bubble += idle;
    return parts;
  }
  Seconds others;  // a micro-batch through the other stages
  for (const auto& other : stages) {
    if (&other != &stage) others += other.passes.all();
  }
  const Seconds waiting = std::min(idle, others / static_cast<double>(stage.parts));
  parts.bubble += waiting;
  parts.pipeline += idle - waiting;
  return parts;
}

}  // namespace isobar::results

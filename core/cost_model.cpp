#include "core/cost_model.hpp"

#include "core/layer_graph.hpp"

#include <algorithm>

namespace isobar {

namespace {

template <typename Read>
std::vector<double> prefix_sums(const std::vector<Layer>& layers, Read read)
{
  std::vector<double> sums(layers.size() + 1, 0);
  for (std::size_t i = 0; i < layers.size(); ++i) sums[i + 1] = sums[i] + read(layers[i]);
  return sums;
}

}  // namespace

CostModel::CostModel(const Workload& workload, const Cluster& cluster)
    : workload_(&workload),
      cluster_(&cluster),
      forward_(prefix_sums(workload.layers, [](const Layer& layer) { return layer.forward.value; })),
      backward_(prefix_sums(workload.layers, [](const Layer& layer) { return layer.backward.value; })),
      update_(prefix_sums(workload.layers, [&](const Layer& layer) { return update_work(workload, layer).value; })),
      parameters_(
          prefix_sums(workload.layers, [](const Layer& layer) { return static_cast<double>(layer.parameters); })),
      activations_(prefix_sums(workload.layers, [](const Layer& layer) { return layer.activations.value; })),
      sky_memory_(prefix_sums(workload.layers, [](const Layer& layer) { return layer.sky_memory.value; }))
{
  for (const auto& device : cluster.devices) speed_.push_back(device.speed_at(workload.dtype));
  auto boundaries = boundaries_of(workload);
  boundary_output_ = std::move(boundaries.output);
  boundary_gradient_ = std::move(boundaries.gradient);
}

Seconds CostModel::update_time(std::size_t device, std::size_t first, std::size_t last) const
{
  return Flops(update_[last + 1] - update_[first]) / speed_[device];
}

Seconds CostModel::output_time(std::size_t from, std::size_t to, std::size_t layer) const
{
  return cluster_->path(from, to).transfer_time(boundary_output_[layer]);
}

Seconds CostModel::gradient_time(std::size_t from, std::size_t to, std::size_t layer) const
{
  return cluster_->path(to, from).transfer_time(boundary_gradient_[layer]);
}

Seconds CostModel::input_time(std::size_t device) const
{
  if (!cluster_->data_server) return Seconds(0);
  return cluster_->path(cluster_->data_server_index(), device).transfer_time(boundary_output_.front());
}

Bytes CostModel::memory(std::size_t first, std::size_t last, std::uint64_t in_flight) const
{
  if (memory_ignores_schedule()) return Bytes(sky_memory_[last + 1] - sky_memory_[first]);
  const double parameters = parameters_[last + 1] - parameters_[first];
  const double activations = activations_[last + 1] - activations_[first];
  // One buffer for each transfer that the stage takes part in: input, output and the two gradients.
  const Bytes buffers =
      boundary_output_[first] + boundary_gradient_[first] + boundary_output_[last + 1] + boundary_gradient_[last + 1];
  return Bytes(parameters * bytes_per_parameter(workload_->dtype, workload_->optimizer) +
               activations * static_cast<double>(in_flight)) +
         buffers + workload_->recompute_buffer;
}

bool CostModel::memory_ignores_schedule() const
{
  return workload_->memory_model == MemoryModel::Sky;
}

Seconds CostModel::stage_cost(Communication communication, Seconds compute, Seconds send)
{
  switch (communication) {
    case Communication::None:
      return compute;
    case Communication::Overlapped:
      return std::max(compute, send);
    case Communication::Serial:
      return compute + send;
  }
  return compute;
}

Seconds CostModel::objective_of(Objective objective, std::uint64_t microbatches, Seconds bottleneck, Seconds sum)
{
  switch (objective) {
    case Objective::Sequential:
      return sum;
    case Objective::Bottleneck:
      return bottleneck;
    case Objective::Pipeline:
      return static_cast<double>(microbatches - 1) * bottleneck + sum;
  }
  return sum;
}

CostModel::Evaluation CostModel::evaluate(const std::vector<StagePlacement>& stages, const Goal& goal) const
{
  // The data server counts as a stage before the first: no compute, one transfer.
  const Seconds input = input_time(stages.front().device);
  const double microbatches = static_cast<double>(goal.microbatches);
  Evaluation result;
  result.bottleneck = result.sum = stage_cost(goal.communication, Seconds(0), input);
  result.sequential = input;
  Seconds way_back;       // of the last gradient, from this stage to the first
  Seconds latest_update;  // end of a stage's update, counted from the end of the last backward of the first stage
  Seconds slowest_update;
  Seconds gradient;  // over the cut before the stage
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    const Seconds compute = compute_time(device, first, last);
    const Seconds update = update_time(device, first, last);
    result.step_bound = std::max(result.step_bound, result.sequential + microbatches * compute);
    latest_update = std::max(latest_update, update - way_back);
    slowest_update = std::max(slowest_update, update);

    const bool is_last = i + 1 == stages.size();
    const Seconds output = is_last ? Seconds(0) : output_time(device, stages[i + 1].device, last + 1);
    const Seconds cost = stage_cost(goal.communication, compute, gradient + output);
    result.bottleneck = std::max(result.bottleneck, cost);
    result.sum += cost;
    gradient = is_last ? Seconds(0) : gradient_time(device, stages[i + 1].device, last + 1);
    result.sequential += compute + output + gradient;
    way_back += backward_work(first, last) / speed_[device] + gradient;
  }
  result.objective = objective_of(goal.objective, goal.microbatches, result.bottleneck, result.sum);
  result.step_bound = result.step_bound / cluster_->profile_speedup;
  // A step as its schedule takes it, whatever the objective. The next input arrives while a micro-batch is under way.
  result.step_time =
      goal.schedule == Schedule::Sequential
          ? input + microbatches * (result.sequential - input) + latest_update
          : objective_of(Objective::Pipeline, goal.microbatches, result.bottleneck, result.sum) + slowest_update;
  return result;
}

}  // namespace isobar

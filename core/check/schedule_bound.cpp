#include "core/check/schedule_bound.hpp"

#include "core/check/claims.hpp"
#include "core/costs/layer_times.hpp"
#include "core/model/layer_graph.hpp"
#include "core/steps/step_player.hpp"

#include <algorithm>
#include <cmath>

namespace isobar {

namespace {

/// A stage for one micro-batch, in seconds. The transfers are over the cut after it.
struct OrderedStage {
  double forward = 0;
  double backward = 0;  // without the weight gradients
  double weights = 0;
  PlayedTransfer output;
  PlayedTransfer gradient;
  double held = 1;  // the most micro-batches that its device can hold

  double passes() const { return forward + backward; }
  double longest() const { return std::max({forward, backward, output.data, gradient.data}); }
};

class OrderBound {
 public:
  OrderBound(const Plan& plan, const std::vector<std::size_t>& devices, const Workload& workload,
             const Cluster& cluster)
      : plan_(plan),
        devices_(devices),
        workload_(workload),
        cluster_(cluster),
        cuts_(boundaries_of(workload)),
        microbatches_(static_cast<double>(plan.goal.microbatches))
  {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) stages_.push_back(stage(i));
  }

  double least() const
  {
    const PlayedTransfer first_input = input();
    double round_trip = 0;
    double turn = first_input.data;
    for (const auto& stage : stages_) {
      round_trip += stage.passes() + stage.output.total() + stage.gradient.total();
      turn = std::max(turn, stage.longest());
    }
    const double last_weights = stages_.front().weights;
    double least = round_trip + last_weights + (microbatches_ - 1) * turn;
    double there = 0;
    double back = 0;
    for (const auto& stage : stages_) {
      // From the start of a micro-batch's forward on the device to the end of its backward there.
      const double own_trip = round_trip - there - back;
      const double all_work = microbatches_ * (stage.passes() + stage.weights);
      const double idle_when_full = own_trip - stage.backward - stage.held * stage.forward;
      const double rounds = std::ceil(microbatches_ / stage.held);
      least = std::max({least, there + std::max(0.0, idle_when_full) + all_work,
                        there + microbatches_ * stage.passes() + back + last_weights,
                        there + rounds * (own_trip + stage.weights)});
      there += stage.forward + stage.output.total();
      back += stage.gradient.total() + stage.backward;
    }
    return least + first_input.total();
  }

 private:
  OrderedStage stage(std::size_t index) const
  {
    const Stage& placed = plan_.stages[index];
    const Device& device = cluster_.devices[devices_[index]];
    OrderedStage result;
    double backward = 0;
    double parameters = 0;
    double activations = 0;
    for (std::size_t k = placed.first_layer; k <= placed.last_layer; ++k) {
      const Layer& layer = workload_.layers[k];
      const LayerTimes times = times_on(workload_, k, device);
      result.forward += times.forward.value;
      backward += times.backward.value;
      result.weights += times.backward_weight.value;
      parameters += static_cast<double>(layer.parameters);
      activations += layer.activations.value;
    }
    result.backward = std::max(0.0, backward - result.weights);
    const std::size_t end = placed.last_layer + 1;
    if (index + 1 < plan_.stages.size()) {
      result.output = hop(devices_[index], devices_[index + 1], cuts_.output[end]);
      result.gradient = hop(devices_[index + 1], devices_[index], cuts_.gradient[end]);
    }
    const Bytes buffers = cuts_.output[placed.first_layer] + cuts_.gradient[placed.first_layer] + cuts_.output[end] +
                          cuts_.gradient[end] + workload_.workspace;
    const double resident = parameters * bytes_per_parameter(workload_) + buffers.value;
    const bool is_limited = workload_.memory_model == MemoryModel::Training && activations > 0;
    const double room = device.memory.value * (1 + claim_tolerance) - resident;
    result.held = is_limited ? std::clamp(std::floor(room / activations), 1.0, microbatches_) : microbatches_;
    return result;
  }

  PlayedTransfer hop(std::size_t from, std::size_t to, Bytes size) const
  {
    if (plan_.goal.has_free_transfers()) return {};
    const Path path = cluster_.path(from, to);
    return {path.latency.value, size.value / path.bandwidth.value};
  }

  PlayedTransfer input() const
  {
    if (!cluster_.data_server) return {};
    return hop(cluster_.data_server_index(), devices_.front(), cuts_.output.front());
  }

  const Plan& plan_;
  const std::vector<std::size_t>& devices_;
  const Workload& workload_;
  const Cluster& cluster_;
  Boundaries cuts_;
  double microbatches_;
  std::vector<OrderedStage> stages_;
};

}  // namespace

double least_step_of_orders(const Plan& plan, const std::vector<std::size_t>& devices, const Workload& workload,
                            const Cluster& cluster)
{
  return OrderBound(plan, devices, workload, cluster).least();
}

}  // namespace isobar

// The bound for devices that use their machines (docs/certificates.md): all work over all speeds, and of one device
// what copies and updates take at least, for every part of the layers that may stay on it.

#include "core/certificates/proofs.hpp"
#include "core/costs/layer_times.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/model/layer_graph.hpp"

#include <algorithm>
#include <vector>

namespace isobar::proofs {

namespace {

/// Sums over the layers before each one, and over all.
struct Before {
  std::vector<double> forward_s = {0};
  std::vector<double> backward_s = {0};
  std::vector<double> update_flop = {0};
  std::vector<double> resident_bytes = {0};
};

bool is_trained_with_all_gradients(const Plan& plan, const Workload& workload)
{
  for (const auto& stage : plan.stages) {
    if (stage.residence.copies == Copies::Redundant) return false;
  }
  return needs_gradient_sync(workload);
}

}  // namespace

double window_bound(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const auto microbatches = static_cast<double>(plan.goal.microbatches);
  double speed = 0;
  for (const auto& rates : rates_of_devices(workload, cluster)) speed += rates.largest;
  const auto work = work_of_layers(workload, reference_times(workload, cluster));
  Before before;
  double densest = 0;     // FLOP of updates for each byte that stays
  double parameters = 0;  // count
  double pass = 0;        // bytes, of the layer that needs most
  const ParameterBytes bytes = parameter_bytes(workload);
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const Layer& layer = workload.layers[i];
    const auto count = static_cast<double>(layer.parameters);
    const double update = count * update_flops_per_parameter(workload.optimizer);
    before.forward_s.push_back(before.forward_s.back() + microbatches * work[i].forward.value / speed);
    before.backward_s.push_back(before.backward_s.back() + microbatches * work[i].backward.value / speed);
    before.update_flop.push_back(before.update_flop.back() + update);
    before.resident_bytes.push_back(before.resident_bytes.back() + count * bytes.all());
    if (count > 0) densest = std::max(densest, update / (count * bytes.all()));
    parameters += count;
    pass = std::max(pass, (layer.activations + std::min(layer.workspace, workload.workspace)).value);
  }
  const std::size_t layers = workload.layers.size();
  const double compute = before.forward_s[layers] + before.backward_s[layers];
  const Device& device = cluster.devices.front();
  if (cluster.devices.size() > 1 || !device.machine) return compute;

  const MachineRates rates = machine_rates(plan, device, cluster);
  const Boundaries cuts = boundaries_of(workload);
  const double input = cluster.data_server ? cuts.output.front().value : 0;
  const double room =
      std::max(0.0, device.memory.value - pass - input - cuts.output.back().value - cuts.gradient.back().value);
  const bool waits_for_all = is_trained_with_all_gradients(plan, workload);
  double bound = infinity;
  for (std::size_t part = 0; part < window_bound_parts; ++part) {
    const double fewest = room * static_cast<double>(part) / static_cast<double>(window_bound_parts);
    const double most = room * static_cast<double>(part + 1) / static_cast<double>(window_bound_parts);
    const double loaded = 2 * (parameters * bytes.parameter - fewest * bytes.parameter / bytes.all()) - room + fewest;
    const double stored = parameters * bytes.gradient - most * bytes.gradient / bytes.all();
    double step = std::max({compute, loaded / rates.in.bandwidth.value, stored / rates.out.bandwidth.value});
    std::size_t passes = 0;  // a layer of which some must pass, and none before it need
    while (passes < layers && before.resident_bytes[passes + 1] <= most) ++passes;
    for (std::size_t last = waits_for_all ? layers - 1 : 0; last < layers; ++last) {
      const double while_updating = before.forward_s[passes] + (waits_for_all ? 0 : before.backward_s[last]);
      const double passing = std::max(0.0, before.update_flop[last + 1] - densest * most);
      step = std::max(step,
                      compute + (passing - rates.busy_update_speed.value * while_updating) / rates.update_speed.value);
    }
    bound = std::min(bound, step);
  }
  return bound;
}

}  // namespace isobar::proofs

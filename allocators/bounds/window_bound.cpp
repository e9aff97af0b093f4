#include "allocators/bounds/window_bound.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/model/layer_graph.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace isobar::allocators {

namespace {

/// One device and its machine: what a step takes at least, given the bytes of layers that stay on the device.
class OneDevice {
 public:
  OneDevice(const Plan& plan, const CostModel& cost)
      : rates_(machine_rates(plan, cost.cluster().devices.front(), cost.cluster())),
        agrees_(needs_gradient_sync(cost.workload()) &&
                std::none_of(plan.stages.begin(), plan.stages.end(),
                             [](const Stage& stage) { return stage.residence.copies == Copies::Redundant; }))
  {
    const Workload& workload = cost.workload();
    const auto microbatches = static_cast<double>(plan.goal.microbatches);
    const ParameterBytes bytes = parameter_bytes(workload);
    Bytes pass;  // of the layer that needs most
    for (std::size_t i = 0; i < workload.layers.size(); ++i) {
      const Layer& layer = workload.layers[i];
      const auto parameters = static_cast<double>(layer.parameters);
      layers_.push_back({microbatches * (cost.layer_work(i).forward / cost.speed(0)).value,
                         microbatches * (cost.layer_work(i).backward / cost.speed(0)).value,
                         machine_update_work(workload, layer).value, parameters * bytes.all()});
      compute_ += layers_.back().forward + layers_.back().backward;
      if (layers_.back().bytes > 0) {
        work_per_byte_ = std::max(work_per_byte_, layers_.back().update / layers_.back().bytes);
      }
      parameters_ += parameters * bytes.parameter;
      gradients_ += parameters * bytes.gradient;
      // Where everything stays, only workspaces that count throughout do.
      pass = std::max(pass, layer.activations + std::min(layer.workspace, workload.workspace));
    }
    parameter_share_ = bytes.parameter / bytes.all();
    gradient_share_ = bytes.gradient / bytes.all();
    const Boundaries cuts = boundaries_of(workload);
    const Bytes input = cost.cluster().data_server ? cuts.output.front() : Bytes(0);
    const Bytes others = pass + input + cuts.output.back() + cuts.gradient.back();
    room_ = std::max(0.0, (cost.cluster().devices.front().memory - others).value);
  }

  double least_step() const
  {
    double least = bound_between(0, 0);
    for (std::size_t i = 0; i < window_bound_parts; ++i) {
      const double part = room_ / static_cast<double>(window_bound_parts);
      const double bound = bound_between(static_cast<double>(i) * part, static_cast<double>(i + 1) * part);
      least = i == 0 ? bound : std::min(least, bound);
    }
    return least;
  }

 private:
  struct Times {
    double forward = 0;  // s
    double backward = 0;
    double update = 0;  // FLOP
    double bytes = 0;   // of a layer that stays
  };

  /// A step in which at least `least` and at most `most` bytes are of layers that stay.
  double bound_between(double least, double most) const
  {
    // What stays until its backward comes once, and any other part twice.
    const double loads = 2 * (parameters_ - parameter_share_ * least) - (room_ - least);
    const double stores = gradients_ - gradient_share_ * most;
    return std::max(
        {compute_, updates_beyond(most), loads / rates_.in.bandwidth.value, stores / rates_.out.bandwidth.value});
  }

  /// The least step by the updates of layers of which at most `resident` bytes stay.
  double updates_beyond(double resident) const
  {
    double bytes = 0;
    double forwards = 0;  // before the first layer of which some must pass, in the best case for the step
    for (const auto& layer : layers_) {
      bytes += layer.bytes;
      if (bytes > resident) break;
      forwards += layer.forward;
    }
    double longest = compute_;
    double work = 0;
    double backwards = 0;  // of the layers before
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      work += layers_[i].update;
      const bool is_last = i + 1 == layers_.size();
      if (!agrees_ || is_last) {
        // What is left to compute when the backward of layer i ends, or when all end.
        const double hidden = (agrees_ ? 0 : backwards) + forwards;
        const double passing = std::max(0.0, work - work_per_byte_ * resident);
        const double left = passing - rates_.busy_update_speed.value * hidden;
        longest = std::max(longest, compute_ + left / rates_.update_speed.value);
      }
      backwards += layers_[i].backward;
    }
    return longest;
  }

  MachineRates rates_;
  bool agrees_;
  std::vector<Times> layers_;
  double compute_ = 0;          // s
  double work_per_byte_ = 0;    // the most update of a byte that stays
  double parameters_ = 0;       // bytes
  double gradients_ = 0;        // bytes
  double parameter_share_ = 0;  // of the bytes that stay
  double gradient_share_ = 0;
  double room_ = 0;  // bytes
};

}  // namespace

Bound window_bound(const Plan& plan, const CostModel& cost)
{
  double work = 0;
  for (std::size_t i = 0; i < cost.layers(); ++i) {
    work += (cost.layer_work(i).forward + cost.layer_work(i).backward).value;
  }
  double speed = 0;
  for (std::size_t i = 0; i < cost.devices(); ++i) speed += cost.speed(i).value;
  double least = static_cast<double>(plan.goal.microbatches) * work / speed;
  const bool is_one = cost.devices() == 1 && cost.cluster().devices.front().machine;
  if (is_one) least = std::max(least, OneDevice(plan, cost).least_step());
  return {Seconds(least), {.kind = CertificateKind::Window}};
}

}  // namespace isobar::allocators

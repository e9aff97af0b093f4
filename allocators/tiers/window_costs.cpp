#include "allocators/tiers/window_costs.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/tiers/lane_clock.hpp"
#include "core/costs/cost_model.hpp"
#include "core/costs/layer_times.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "schedules/lowering/tiers.hpp"

#include <algorithm>
#include <cstddef>

namespace isobar::allocators {

namespace {

Plan plan_of_system(const std::string& system, const Cluster& cluster)
{
  Plan plan;
  if (cluster.systems.contains(system)) plan.system = TrainingSystem{std::string(system)};
  return plan;
}

/// Sums in another order may differ by less.
constexpr double rounded = 1 - 1e-9;

/// The sums of the 0, 1, … least sizes.
std::vector<Bytes> least_sums(std::vector<Bytes> sizes)
{
  std::sort(sizes.begin(), sizes.end());
  std::vector<Bytes> sums(1);
  for (const Bytes size : sizes) sums.push_back(sums.back() + size);
  return sums;
}

}  // namespace

std::size_t WindowShape::windowed() const
{
  return static_cast<std::size_t>(std::count(is_resident.begin(), is_resident.end(), false));
}

WindowCosts::WindowCosts(const Workload& workload, const Cluster& cluster, std::size_t device,
                         std::uint64_t microbatches, const std::string& system)
    : workload_(workload),
      cluster_(cluster),
      device_(cluster.devices.at(device)),
      machine_(cluster.machines.at(device_.machine.value().machine)),
      microbatches_(static_cast<double>(microbatches))
{
  const Plan plan = plan_of_system(system, cluster);
  measured_ = measured_system(plan, cluster);
  rates_ = machine_rates(plan, device_, cluster);
  const ParameterBytes bytes = isobar::parameter_bytes(workload);
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const Layer& layer = workload.layers[i];
    const LayerTimes times = times_on(workload, i, device_);
    const auto count = static_cast<double>(layer.parameters);
    forward_.push_back(microbatches_ * times.forward.value);
    backward_.push_back(microbatches_ * times.backward.value);
    device_updates_.push_back(times.update.value);
    machine_updates_.push_back(machine_update_work(workload, layer).value);
    parameters_.emplace_back(count * bytes.parameter);
    gradients_.emplace_back(count * bytes.gradient);
    states_.emplace_back(count * bytes.optimizer);
    activations_.push_back(layer.activations);
    workspaces_.push_back(layer.workspace);
  }
  const Boundaries cuts = boundaries_of(workload);
  input_gradients_ = cuts.gradient;
  if (cluster.data_server) buffers_ = cuts.output.front();
  buffers_ += cuts.output.back() + cuts.gradient.back();
  std::vector<Bytes> kept;
  std::vector<Bytes> parameters;
  std::vector<Bytes> passing;
  for (std::size_t i = 1; i + 1 < layers(); ++i) {
    kept.push_back(parameters_[i] + gradients_[i] + states_[i]);
    parameters.push_back(parameters_[i]);
    passing.push_back(parameters_[i] + states_[i]);
    inner_activations_ += microbatches_ * activations_[i];
  }
  least_kept_ = least_sums(std::move(kept));
  least_parameters_ = least_sums(std::move(parameters));
  least_passing_ = least_sums(std::move(passing));
}

double WindowCosts::update_time(std::size_t layer) const
{
  return machine_updates_[layer] / rates_.update_speed.value;
}

double WindowCosts::busy_update_time(std::size_t layer) const
{
  return machine_updates_[layer] / rates_.busy_update_speed.value;
}

std::pair<Bytes, Bytes> WindowCosts::places_of(const WindowShape& shape) const
{
  std::pair<Bytes, Bytes> largest;
  for (std::size_t i = 0; i < layers(); ++i) {
    if (shape.is_resident[i]) continue;
    largest.first = std::max(largest.first, parameters_[i]);
    largest.second = std::max(largest.second, gradients_[i]);
  }
  return largest;
}

WindowMemory WindowCosts::memory_of(const WindowShape& shape) const
{
  WindowMemory memory;
  Bytes kept;     // on the device, of all micro-batches and layers up to one
  Bytes most;     // with the workspace of that layer
  Bytes largest;  // of those that pass, two of which are on the device at a time
  Bytes second;
  for (std::size_t i = 0; i < layers(); ++i) {
    const bool is_stored = shape.stores_activations && i > 0 && i + 1 < layers();
    (is_stored ? memory.host : kept) += microbatches_ * activations_[i];
    // When its first backward runs, the gradients of its outputs wait for the backwards of all micro-batches.
    const Bytes waiting = i + 1 < layers() ? microbatches_ * input_gradients_[i + 1] : Bytes(0);
    most = std::max(most, kept + workspaces_[i] + waiting + input_gradients_[i]);
    for (int copy = 0; is_stored && copy < (microbatches_ < 2 ? 1 : 2); ++copy) {
      second = std::max(second, std::min(largest, activations_[i]));
      largest = std::max(largest, activations_[i]);
    }
  }
  memory.device = buffers_ + most;
  memory.device += largest;
  memory.device += second;
  const auto [parameters, gradients] = places_of(shape);
  const std::size_t windowed = shape.windowed();
  Bytes largest_state;
  Bytes all_gradients;
  std::size_t left = windowed;
  for (std::size_t i = 0; i < layers(); ++i) {
    if (shape.is_resident[i]) {
      memory.device += parameters_[i] + gradients_[i] + states_[i];
      continue;
    }
    memory.host += parameters_[i];
    all_gradients += gradients_[i];
    if (left-- > shape.spilled) {
      memory.host += states_[i];
    } else {
      memory.disk += states_[i];
      largest_state = std::max(largest_state, states_[i]);
    }
  }
  if (windowed > 0) {
    const bool keeps_all =
        shape.overlap == UpdateOverlap::None || (needs_gradient_sync(workload_) && shape.copies != Copies::Redundant);
    const std::size_t waiting = keeps_all ? windowed : std::min(windowed, schedules::host_gradient_slots);
    memory.host += waiting == windowed ? all_gradients : gradients * static_cast<double>(waiting);
    memory.host += largest_state * static_cast<double>(std::min(shape.spilled, schedules::staged_states));
    memory.device +=
        parameters * static_cast<double>(shape.parameter_slots) + gradients * static_cast<double>(shape.gradient_slots);
  }
  memory.device = (memory.device + measured_.workspace) * measured_.reserved_fraction;
  memory.host = memory.host * measured_.host_fraction;
  return memory;
}

bool WindowCosts::device_may_hold(std::size_t resident) const
{
  return least_on_device(resident, true) <= device_.memory;
}

bool WindowCosts::may_fit(std::size_t resident) const
{
  return may_fit(resident, false) || may_fit(resident, true);
}

bool WindowCosts::may_fit(std::size_t resident, bool stores_activations) const
{
  const std::size_t passing = layers() - 2 - resident;
  const Bytes activations = stores_activations ? inner_activations_ : Bytes(0);
  const Bytes on_disk = machine_.disk ? machine_.disk->capacity : Bytes(0);
  return least_on_device(resident, stores_activations) <= device_.memory &&
         (least_parameters_[passing] + activations) * measured_.host_fraction * rounded <= machine_.memory &&
         (least_passing_[passing] + activations) * rounded <= machine_.memory + on_disk;
}

/// Without places.
Bytes WindowCosts::least_on_device(std::size_t resident, bool stores_activations) const
{
  Bytes least = buffers_ + measured_.workspace + least_kept_[resident];
  for (const std::size_t end : {std::size_t{0}, layers() - 1}) {
    least += parameters_[end] + gradients_[end] + states_[end] + microbatches_ * activations_[end];
  }
  if (!stores_activations) least += inner_activations_;
  return least * measured_.reserved_fraction * rounded;
}

Seconds WindowCosts::step_of(const WindowShape& shape) const
{
  using Need = LaneClock::Need;
  const auto count = [](std::size_t number) { return static_cast<std::uint32_t>(number); };
  const std::size_t all = layers();
  std::vector<std::size_t> passing;
  for (std::size_t i = 0; i < all; ++i) {
    if (!shape.is_resident[i]) passing.push_back(i);
  }
  const std::size_t n = passing.size();
  const std::size_t k = std::min(shape.parameter_slots, n);
  const std::size_t g = std::min(shape.gradient_slots, n);
  ensure(n == 0 || (k > 0 && g > 0), "layers that pass need places");
  LaneClock clock;
  // Micro-batches need items of their own only where their activations pass.
  const std::size_t passes = shape.stores_activations ? static_cast<std::size_t>(microbatches_) : 1;
  const auto forward_of = [&](std::size_t layer) { return layer * passes; };  // the first of them
  const auto backward_of = [&](std::size_t layer) { return (2 * all - 1 - layer) * passes; };
  const auto last_of = [&](std::size_t first) { return first + passes - 1; };
  const auto stores_activations_of = [&](std::size_t layer) {
    return shape.stores_activations && layer > 0 && layer + 1 < all;
  };
  double device_updates = 0;
  const auto add_passes = [&](double time) {
    for (std::size_t m = 0; m < passes; ++m) {
      clock.add(LaneClock::Compute, {time / static_cast<double>(passes)});
    }
  };
  for (std::size_t i = 0; i < all; ++i) {
    if (shape.is_resident[i]) device_updates += device_updates_[i];
    add_passes(forward_[i]);
  }
  for (std::size_t i = all; i-- > 0;) add_passes(backward_[i]);
  clock.add(LaneClock::Compute, {device_updates});

  for (std::size_t i = 0; i < all; ++i) {
    for (std::size_t m = 0; m < passes && stores_activations_of(i); ++m) {
      const std::size_t stored = clock.length(LaneClock::CopyOut);
      const std::size_t forward = forward_of(i) + m;
      if (stored >= 2) clock.item(LaneClock::Compute, forward).add({LaneClock::CopyOut, 0, count(stored - 1)});
      LaneClock::Item store{rates_.out.time_of(activations_[i]).value};
      store.add({LaneClock::Compute, 0, count(forward + 1)});
      clock.add(LaneClock::CopyOut, store);
    }
  }
  const std::size_t stored = clock.length(LaneClock::CopyOut);

  // Parameters that leave their place, in this order: after forwards all but those that stay for their backward.
  std::vector<std::size_t> released;
  for (std::size_t j = 0; j + k < n; ++j) released.push_back(last_of(forward_of(passing[j])));
  for (std::size_t j = n; j-- > 0;) released.push_back(last_of(backward_of(passing[j])));
  const bool ends_in_step = shape.overlap == UpdateOverlap::None || shape.overlap == UpdateOverlap::Step;
  std::size_t loaded = 0;
  const auto add_load = [&](std::size_t j, bool is_backward) {
    const std::size_t q = loaded++;
    LaneClock::Item load{rates_.in.time_of(parameters_[passing[j]]).value};
    if (is_backward) load.amount += rates_.backward_delay.value;
    const bool is_of_last_step = q < k;
    const std::size_t freed = is_of_last_step ? last_of(backward_of(passing[q])) : released[q - k];
    load.add({LaneClock::Compute, static_cast<std::uint8_t>(is_of_last_step), count(freed + 1)});
    load.add({LaneClock::Host, 1, count(ends_in_step ? n : n - j)});
    const std::size_t number = clock.add(LaneClock::CopyIn, load);
    const std::size_t pass = is_backward ? backward_of(passing[j]) : forward_of(passing[j]);
    clock.item(LaneClock::Compute, pass).add({LaneClock::CopyIn, 0, count(number + 1)});
  };
  for (std::size_t j = 0; j < n; ++j) add_load(j, false);
  std::size_t left = n;  // layers that pass before those whose loads for the backward are there
  for (std::size_t i = all; i-- > 0;) {
    if (left > 0 && passing[left - 1] == i && left-- <= n - k) add_load(left, true);
    for (std::size_t m = 0; m < passes && stores_activations_of(i); ++m) {
      const std::size_t backward = backward_of(i) + m;
      LaneClock::Item load{rates_.in.time_of(activations_[i]).value};
      load.add({LaneClock::Compute, 0, count(backward - 1)});
      load.add({LaneClock::CopyOut, 0, count((i - 1) * passes + m + 1)});
      const std::size_t number = clock.add(LaneClock::CopyIn, load);
      clock.item(LaneClock::Compute, backward).add({LaneClock::CopyIn, 0, count(number + 1)});
    }
  }

  const bool agrees = needs_gradient_sync(workload_);
  const bool keeps_all = shape.overlap == UpdateOverlap::None || agrees;
  const std::size_t host_places = keeps_all ? n : std::min(n, schedules::host_gradient_slots);
  for (std::size_t a = 0; a < n; ++a) {  // in the order of backwards
    const std::size_t layer = passing[n - 1 - a];
    LaneClock::Item& backward = clock.item(LaneClock::Compute, backward_of(layer));
    backward.add(a >= g ? Need{LaneClock::CopyOut, 0, count(stored + a - g + 1)}
                        : Need{LaneClock::CopyOut, 1, count(stored + a + (n - 1 - a) / g * g + 1)});
    LaneClock::Item store{rates_.out.time_of(gradients_[layer]).value};
    store.add({LaneClock::Compute, 0, count(last_of(backward_of(layer)) + 1)});
    store.add(a >= host_places ? Need{LaneClock::Host, 0, count(a - host_places + 1)}
                               : Need{LaneClock::Host, 1, count(host_places < n ? a + n - host_places + 1 : a + 1)});
    clock.add(LaneClock::CopyOut, store);
    LaneClock::Item update{machine_updates_[layer]};
    update.add({LaneClock::CopyOut, 0, count(stored + (shape.overlap == UpdateOverlap::None ? n : a + 1))});
    if (agrees) update.add({LaneClock::Compute, 0, count(2 * all * passes)});
    if (a < shape.spilled) {
      LaneClock::Item read{rates_.read.time_of(states_[layer]).value};
      const std::size_t staged = schedules::staged_states;
      if (a >= staged) {
        read.add({LaneClock::DiskWrite, 0, count(a - staged + 1)});
      } else {
        const std::size_t freed = a + shape.spilled < staged ? 0 : a + shape.spilled - staged + 1;
        read.add({LaneClock::DiskWrite, 1, count(std::max(a + 1, freed))});
      }
      clock.add(LaneClock::DiskRead, read);
      update.add({LaneClock::DiskRead, 0, count(a + 1)});
      LaneClock::Item write{rates_.write.time_of(states_[layer]).value};
      write.add({LaneClock::Host, 0, count(a + 1)});
      clock.add(LaneClock::DiskWrite, write);
    }
    clock.add(LaneClock::Host, update);
  }
  if (n > 0 && ends_in_step) clock.item(LaneClock::Compute, 0).add({LaneClock::Host, 1, count(n)});
  const CountedStep counted = counted_step(n > 0 ? shape.overlap : UpdateOverlap::Step);
  return clock.time_of(counted.before, counted.played(), rates_.update_speed, rates_.busy_update_speed);
}

std::vector<Stage> WindowCosts::stages_of(const WindowShape& shape) const
{
  const CostModel cost(workload_, cluster_);
  const Shard shard = shard_on(cost, cluster_.device_index(device_.name).value());
  if (shape.is_on_device()) return {stage_on(shard, 0, layers() - 1)};
  std::vector<Stage> stages;
  std::size_t left = shape.windowed();
  for (std::size_t i = 0; i < layers(); ++i) {
    stages.push_back(stage_on(shard, i, i));
    Residence& residence = stages.back().residence;
    if (shape.stores_activations && i > 0 && i + 1 < layers()) residence.activations = Tier::Host;
    if (shape.is_resident[i]) continue;
    residence.parameters = residence.gradients = Tier::Host;
    residence.optimizer = left-- > shape.spilled ? Tier::Host : Tier::Disk;
    residence.parameter_slots = shape.parameter_slots;
    residence.gradient_slots = shape.gradient_slots;
    residence.overlap = shape.overlap;
    residence.copies = shape.copies;
  }
  return stages;
}

}  // namespace isobar::allocators

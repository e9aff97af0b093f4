#include "allocators/tiers/published.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/tiers/tier_plans.hpp"
#include "allocators/tiers/window_costs.hpp"
#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

/// A stage for each layer on a device, with what the machine has of it.
std::vector<Stage> stages_with(const HybridProblem& problem, std::size_t device,
                               const std::function<Residence(std::size_t layer)>& residence_of)
{
  const CostModel cost(problem.workload, problem.cluster);
  std::vector<Stage> stages;
  for (std::size_t layer = 0; layer < problem.workload.layers.size(); ++layer) {
    stages.push_back(stage_on(shard_on(cost, device), layer, layer));
    stages.back().residence = residence_of(layer);
  }
  return stages;
}

/// The plan of each kind of device. The system's measured constants count where the platform has them.
Proposals propose_for_each_kind(const HybridProblem& problem, std::string_view name,
                                const std::function<std::vector<Stage>(std::size_t device)>& stages_on)
{
  require_passing(problem, name);
  Proposals proposals;
  for (const std::size_t device : kinds_with_machine(problem.cluster)) {
    Plan plan = plan_of(problem, stages_on(device));
    if (problem.cluster.systems.contains(std::string(name))) plan.system = TrainingSystem{std::string(name)};
    proposals.plans.push_back(std::move(plan));
  }
  if (proposals.plans.empty()) proposals.reason = reason_of(problem.cluster, {});
  return proposals;
}

bool is_at_an_end(const HybridProblem& problem, std::size_t layer)
{
  return layer == 0 || layer + 1 == problem.workload.layers.size();
}

/// The published choice: the smallest window that hides copies and updates, else the largest that fits.
std::size_t published_window(const HybridProblem& problem, const WindowCosts& costs,
                             const std::function<WindowShape(std::size_t window)>& shape_of)
{
  const std::size_t blocks = problem.workload.layers.size() - 2;
  double copy_in = 0;
  double copy_out = 0;
  double update = 0;
  double forward = costs.forward(1);
  double backward = costs.backward(1);
  double all_backwards = 0;
  for (std::size_t i = 1; i <= blocks; ++i) {
    copy_in = std::max(copy_in, costs.rates().in.time_of(costs.parameter_bytes(i)).value);
    copy_out = std::max(copy_out, costs.rates().out.time_of(costs.parameter_bytes(i)).value);
    update = std::max(update, costs.busy_update_time(i));
    forward = std::min(forward, costs.forward(i));
    backward = std::min(backward, costs.backward(i));
    all_backwards += costs.backward(i);
  }
  all_backwards += costs.backward(blocks + 1);
  const auto hides = [&](std::size_t window) {
    const auto w = static_cast<double>(window);
    const auto passing = static_cast<double>(blocks - window);
    return copy_in <= w * forward && copy_in <= (w - 1) * backward && copy_out <= (w - 1) * forward &&
           std::max(copy_in, copy_out) <= std::min(forward, backward) && 2 * copy_out + update <= (w - 1) * backward &&
           passing * update <= all_backwards;
  };
  for (std::size_t window = 1; window < blocks; ++window) {
    if (!hides(window) || !costs.may_fit(window)) continue;
    const WindowMemory memory = costs.memory_of(shape_of(window));
    if (memory.device <= costs.device().memory && memory.host <= costs.machine().memory) return window;
  }
  std::size_t largest = 0;  // that the device holds, which needs the least of the machine
  for (std::size_t window = blocks; window-- > 1;) {
    if (!costs.device_may_hold(window) || (largest > 0 && !costs.may_fit(window))) continue;
    const WindowMemory memory = costs.memory_of(shape_of(window));
    if (memory.device > costs.device().memory) continue;
    largest = std::max(largest, window);
    if (memory.host <= costs.machine().memory) return window;
  }
  return std::max<std::size_t>(largest, 1);
}

/// A window of blocks at the front stays, and as many places are there for the others.
WindowShape stronghold_shape(const HybridProblem& problem, std::size_t window, Copies copies)
{
  const std::size_t layers = problem.workload.layers.size();
  WindowShape shape;
  shape.is_resident.assign(layers, false);
  shape.is_resident.front() = shape.is_resident.back() = true;
  for (std::size_t i = 1; i <= window; ++i) shape.is_resident[i] = true;
  const std::size_t places = std::min(window, layers - 2 - window);
  shape.parameter_slots = places;
  shape.gradient_slots = copies == Copies::Redundant ? places + 1 : places;
  shape.copies = copies;
  return shape;
}

Proposals propose_strongholds(const HybridProblem& problem, std::string_view name, Copies copies)
{
  const std::size_t blocks = problem.workload.layers.size() < 3 ? 0 : problem.workload.layers.size() - 2;
  const auto& window = problem.limits.window;
  if (window && (*window < 1 || *window >= std::max<std::size_t>(blocks, 1))) {
    throw InputError("--window", fmt::format("{} of {} blocks; some stay on the device and some pass, so it is 1 to {}",
                                             *window, blocks, blocks > 0 ? blocks - 1 : 0));
  }
  return propose_for_each_kind(problem, name, [&](std::size_t device) {
    const WindowCosts costs(problem.workload, problem.cluster, device, problem.goal.microbatches, std::string(name));
    const auto shape_of = [&](std::size_t size) { return stronghold_shape(problem, size, copies); };
    return costs.stages_of(shape_of(window ? *window : published_window(problem, costs, shape_of)));
  });
}

}  // namespace

Proposals propose_resident(const HybridProblem& problem)
{
  Proposals proposals;
  for (std::size_t device = 0; device < problem.cluster.devices.size(); ++device) {
    const CostModel cost(problem.workload, problem.cluster);
    Plan plan = plan_of(problem, {stage_on(shard_on(cost, device), 0, problem.workload.layers.size() - 1)});
    if (problem.cluster.systems.contains("resident")) plan.system = TrainingSystem{"resident"};
    proposals.plans.push_back(std::move(plan));
  }
  return proposals;
}

Proposals propose_l2l(const HybridProblem& problem)
{
  return propose_for_each_kind(problem, "l2l", [&](std::size_t device) {
    return stages_with(problem, device, [&](std::size_t layer) {
      Residence residence;
      residence.optimizer = Tier::Host;
      residence.overlap = UpdateOverlap::None;
      if (is_at_an_end(problem, layer)) return residence;
      residence.parameters = Tier::Host;
      residence.parameter_slots = 1;
      residence.copies = Copies::WriteBack;
      return residence;
    });
  });
}

Proposals propose_zero_offload(const HybridProblem& problem)
{
  return propose_for_each_kind(problem, "zero-offload", [&](std::size_t device) {
    return stages_with(problem, device, [](std::size_t) {
      Residence residence;
      residence.gradients = residence.optimizer = Tier::Host;
      residence.gradient_slots = 1;
      residence.overlap = UpdateOverlap::None;
      return residence;
    });
  });
}

Proposals propose_zero_infinity(const HybridProblem& problem)
{
  return propose_for_each_kind(problem, "zero-infinity", [&](std::size_t device) {
    const WindowCosts costs(problem.workload, problem.cluster, device, problem.goal.microbatches,
                            std::string(zero_infinity_allocator.name));
    WindowShape shape;
    shape.is_resident.assign(problem.workload.layers.size(), false);
    shape.parameter_slots = shape.gradient_slots = 1;
    shape.overlap = UpdateOverlap::None;
    const bool fits_on_host = costs.memory_of(shape).host <= costs.machine().memory;
    if (!fits_on_host && costs.machine().disk) shape.spilled = shape.windowed();
    return costs.stages_of(shape);
  });
}

Proposals propose_published_stronghold(const HybridProblem& problem)
{
  return propose_strongholds(problem, published_stronghold_allocator.name, Copies::Redundant);
}

Proposals propose_stronghold(const HybridProblem& problem)
{
  return propose_strongholds(problem, stronghold_allocator.name, Copies::Lean);
}

}  // namespace isobar::allocators

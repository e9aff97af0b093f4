#include "allocators/tiers/tier_plans.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::size_t least_layers_of_a_plan = 3;

auto traits_of(const Device& device, const Cluster& cluster)
{
  const Machine& machine = cluster.machines.at(device.machine.value().machine);
  const Disk disk = machine.disk.value_or(Disk{});
  return std::make_tuple(device.speed, device.speed_in, device.memory, device.machine->in.latency,
                         device.machine->in.bandwidth, device.machine->out.latency, device.machine->out.bandwidth,
                         machine.memory, machine.update_speed, machine.busy_update_speed, disk.capacity, disk.read,
                         disk.write);
}

}  // namespace

void require_passing(const HybridProblem& problem, std::string_view allocator)
{
  const Workload& workload = problem.workload;
  if (workload.layers.size() < least_layers_of_a_plan) {
    throw InputError("allocator", fmt::format("{} keeps the first and the last layer on the device; workload {} has {}",
                                              allocator, workload.name, counted(workload.layers.size(), "layer")));
  }
  if (problem.goal.microbatches > 1 && chain_schedule(problem.goal.schedule) != ChainSchedule::GPipe) {
    throw InputError("schedule",
                     fmt::format("{} passes layers once for each of {} micro-batches; use gpipe, which lets {} pass "
                                 "them once a step",
                                 text_of(problem.goal.schedule), problem.goal.microbatches, allocator));
  }
  if (schedules::require_schedule(problem.goal.schedule.name).splits_backward) {
    throw InputError("schedule", fmt::format("{} passes layers once for each half of a backward pass; use gpipe, which "
                                             "lets {} pass them once a step",
                                             text_of(problem.goal.schedule), allocator));
  }
  for (std::size_t layer = 1; layer + 1 < workload.layers.size(); ++layer) {
    if (std::binary_search(workload.recompute.begin(), workload.recompute.end(), layer)) continue;
    throw InputError("recompute",
                     fmt::format("layer {} keeps its activations; those that pass through the device with {} recompute "
                                 "them: use --recompute all",
                                 layer, allocator));
  }
}

std::vector<std::size_t> kinds_with_machine(const Cluster& cluster)
{
  std::vector<std::size_t> kinds;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const Device& device = cluster.devices[i];
    if (!device.machine) continue;
    const bool is_known = std::any_of(kinds.begin(), kinds.end(), [&](std::size_t kind) {
      return traits_of(cluster.devices[kind], cluster) == traits_of(device, cluster);
    });
    if (!is_known) kinds.push_back(i);
  }
  return kinds;
}

Plan plan_of(const HybridProblem& problem, std::vector<Stage> stages)
{
  Plan plan;
  plan.goal = problem.goal;
  plan.stages = std::move(stages);
  return plan;
}

std::string what_lacks(const WindowCosts& costs, const WindowMemory& need)
{
  const Machine& machine = costs.machine();
  const auto text = [](const char* tier, const std::string& name, Bytes needs, Bytes has) {
    return fmt::format("{} {}: at least {} is needed and it has {}; {} more there would be enough", tier, name,
                       text_of(needs), text_of(has), text_of(needs - has));
  };
  if (need.device > costs.device().memory) {
    return text("device", costs.device().name, need.device, costs.device().memory);
  }
  if (need.host > machine.memory) {
    const std::string on_disk = machine.disk ? "" : ", as would a disk with a capacity for the optimizer's states";
    return text("host", machine.name, need.host, machine.memory) + on_disk;
  }
  if (machine.disk && need.disk > machine.disk->capacity) {
    return text("disk", machine.name + "/" + machine.disk->name, need.disk, machine.disk->capacity);
  }
  return fmt::format("device {}: its memory of {} does not hold what passes", costs.device().name,
                     text_of(costs.device().memory));
}

std::string reason_of(const Cluster& cluster, const std::vector<std::string>& reasons)
{
  if (!reasons.empty()) return reasons.front();
  return fmt::format("no device of platform {} has a machine; give devices the prop host", cluster.name);
}

}  // namespace isobar::allocators

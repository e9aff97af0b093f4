#include "exec/run/run_devices.hpp"

#include "core/plan/placed_shards.hpp"
#include "exec/launch/plan_ranks.hpp"

#include <limits>

namespace isobar::exec {

std::optional<FlopsPerSecond> emulated_speed(const Plan& plan, const RunOptions& options, std::size_t rank)
{
  constexpr double not_slowed = 1 + 1e-9;
  const auto shards = shards_of_rank(plan, rank);
  if (!options.emulate || !options.profiled_speed || shards.empty()) return std::nullopt;
  const double slowdown = shard_of(plan, shards.front()).slowdown.value_or(1);
  if (slowdown <= not_slowed) return std::nullopt;
  return *options.profiled_speed / slowdown;
}

Cluster run_devices(const Plan& plan, const RunOptions& options)
{
  const FlopsPerSecond unknown(std::numeric_limits<double>::infinity());
  Cluster cluster;
  cluster.name = plan.platform.name;
  for (const auto& name : devices_of(plan)) {
    const std::size_t rank = cluster.devices.size();
    Device& device = cluster.devices.emplace_back();
    device.name = name;
    device.speed = emulated_speed(plan, options, rank).value_or(unknown);
    device.machine = MachineLink{.machine = rank, .in = {}, .out = {}};
    Machine& machine = cluster.machines.emplace_back();
    machine.update_speed = options.machines.empty() ? unknown : options.machines.at(rank).rates.update_speed;
    machine.busy_update_speed = machine.update_speed;
  }
  return cluster;
}

}  // namespace isobar::exec

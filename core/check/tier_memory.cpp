#include "core/check/tier_memory.hpp"

#include "core/costs/nominal_rates.hpp"

#include <cstddef>
#include <map>

namespace isobar {

namespace {

std::string disk_name(const Machine& machine)
{
  return machine.name + "/" + machine.disk.value().name;
}

}  // namespace

std::vector<UsedMemory> used_memories(const Plan& plan, const Cluster& cluster)
{
  const MeasuredSystem measured = measured_system(plan, cluster);
  const auto devices = devices_of(plan);
  std::vector<UsedMemory> memories;
  std::map<std::size_t, std::vector<std::size_t>> ranks_in;  // by machine
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Device& device = cluster.devices.at(cluster.device_index(devices[rank]).value());
    memories.push_back(
        {device.name, Tier::Device, {rank}, device.memory, measured.workspace, measured.reserved_fraction});
    if (device.machine) ranks_in[device.machine->machine].push_back(rank);
  }
  for (const auto& [index, ranks] : ranks_in) {
    const Machine& machine = cluster.machines.at(index);
    memories.push_back({machine.name, Tier::Host, ranks, machine.memory, {}, measured.host_fraction});
    if (machine.disk) memories.push_back({disk_name(machine), Tier::Disk, ranks, machine.disk->capacity});
  }
  return memories;
}

std::vector<TierMemory> tier_memories(const Plan& plan, const Cluster& cluster, const PlayedProgram& played)
{
  std::vector<TierMemory> memories;
  for (const auto& memory : used_memories(plan, cluster)) {
    Bytes held;
    for (const std::size_t rank : memory.ranks)
      held += played.peak_memory.at(rank)[static_cast<std::size_t>(memory.tier)];
    if (memory.tier != Tier::Device && held.value <= 0) continue;
    memories.push_back({memory.name, memory.tier, memory.taken_by(held), memory.has});
  }
  return memories;
}

std::optional<TierMemory> memory_named(const std::string& name, const Cluster& cluster)
{
  if (const auto device = cluster.device_index(name)) {
    return TierMemory{name, Tier::Device, Bytes(0), cluster.devices[*device].memory};
  }
  for (const auto& machine : cluster.machines) {
    if (machine.name == name) return TierMemory{name, Tier::Host, Bytes(0), machine.memory};
    if (machine.disk && disk_name(machine) == name) {
      return TierMemory{name, Tier::Disk, Bytes(0), machine.disk->capacity};
    }
  }
  return std::nullopt;
}

}  // namespace isobar

#include "core/check/tier_memory.hpp"

#include "core/errors.hpp"
#include "core/plan/nominal_rates.hpp"

#include <array>
#include <cstddef>
#include <map>

namespace isobar {

namespace {

std::string disk_name(const Machine& machine)
{
  return machine.name + "/" + machine.disk.value().name;
}

}  // namespace

std::vector<TierMemory> tier_memories(const Plan& plan, const Cluster& cluster, const PlayedProgram& played)
{
  const MeasuredSystem measured = measured_system(plan, cluster);
  const auto devices = devices_of(plan);
  std::vector<TierMemory> memories;
  std::map<std::size_t, std::array<Bytes, tier_count>> of_machine;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const auto& peak = played.peak_memory.at(rank);
    const Device& device = cluster.devices.at(cluster.device_index(devices[rank]).value());
    const Bytes own = peak[static_cast<std::size_t>(Tier::Device)];
    memories.push_back(
        {device.name, Tier::Device, (own + measured.workspace) * measured.reserved_fraction, device.memory});
    for (const Tier tier : {Tier::Host, Tier::Disk}) {
      const Bytes size = peak[static_cast<std::size_t>(tier)];
      if (size.value <= 0) continue;
      ensure(device.machine.has_value(), "a device whose machine is used is in one");
      const double fraction = tier == Tier::Host ? measured.host_fraction : 1;
      of_machine[device.machine->machine][static_cast<std::size_t>(tier)] += size * fraction;
    }
  }
  for (const auto& [index, sizes] : of_machine) {
    const Machine& machine = cluster.machines.at(index);
    memories.push_back({machine.name, Tier::Host, sizes[static_cast<std::size_t>(Tier::Host)], machine.memory});
    const Bytes on_disk = sizes[static_cast<std::size_t>(Tier::Disk)];
    if (on_disk.value <= 0) continue;
    ensure(machine.disk.has_value(), "a disk that is used is there");
    memories.push_back({disk_name(machine), Tier::Disk, on_disk, machine.disk->capacity});
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

#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>

namespace isobar::sim {

namespace {

std::optional<RankMachine> rank_machine(const Plan& plan, const Device& device, const Cluster& cluster)
{
  if (!device.machine) return std::nullopt;
  const Machine& machine = cluster.machines[device.machine->machine];
  RankMachine result{machine.name, std::nullopt, machine_rates(plan, device, cluster)};
  if (machine.disk) result.disk = machine.disk->name;
  return result;
}

}  // namespace

std::vector<RankHost> rank_hosts(const Plan& plan, const Cluster& cluster)
{
  std::vector<RankHost> ranks;
  for (const auto& name : devices_of(plan)) {
    const auto device = cluster.device_index(name);
    if (!device) {
      throw InputError(cluster.name,
                       fmt::format("there is no device {}; the plan was made for another platform", name));
    }
    const Device& own = cluster.devices[*device];
    ranks.push_back({name, rank_machine(plan, own, cluster), own.interference, own.collective_start});
  }
  if (cluster.data_server) ranks.push_back({*cluster.data_server});
  return ranks;
}

}  // namespace isobar::sim

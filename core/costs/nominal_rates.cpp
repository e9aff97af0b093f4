#include "core/costs/nominal_rates.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar {

MeasuredSystem measured_system(const Plan& plan, const Cluster& cluster)
{
  if (!plan.system) return {};
  const auto measured = cluster.systems.find(plan.system->name);
  return measured == cluster.systems.end() ? MeasuredSystem{} : measured->second;
}

MachineRates machine_rates(const Plan& plan, const Device& device, const Cluster& cluster)
{
  ensure(device.machine.has_value(), "a device whose machine is used is in one");
  const Machine& machine = cluster.machines.at(device.machine->machine);
  const MeasuredSystem measured = measured_system(plan, cluster);
  const auto copy = [&](const Path& path) {
    return CopyRate{path.latency, std::min(path.bandwidth, measured.copy_bandwidth.value_or(path.bandwidth))};
  };
  MachineRates rates;
  rates.machine = device.machine->machine;
  rates.in = copy(device.machine->in);
  rates.out = copy(device.machine->out);
  if (machine.disk) {
    rates.read = {Seconds(0), machine.disk->read};
    rates.write = {Seconds(0), machine.disk->write};
  }
  rates.update_speed = measured.update_speed.value_or(machine.update_speed);
  rates.busy_update_speed =
      measured.busy_update_speed.value_or(measured.update_speed.value_or(machine.busy_update_speed));
  rates.backward_delay = measured.backward_delay;
  rates.cores = machine.cores;
  rates.in_links = device.machine->in_links;
  rates.out_links = device.machine->out_links;
  return rates;
}

Flops machine_update_work(const Workload& workload, const Layer& layer)
{
  return Flops(static_cast<double>(layer.parameters) * update_flops_per_parameter(workload.optimizer));
}

EndNetwork network_of(const Cluster& cluster)
{
  return {[&cluster](std::size_t from, std::size_t to, Bytes size) {
            const Path path = cluster.path(from, to);
            return TransferTimes{path.latency, path.data_time(size)};
          },
          [&cluster](std::size_t from, std::size_t to) { return cluster.network->shared_links(from, to); },
          [&cluster](std::size_t device) { return cluster.devices.at(device).collective_start; }};
}

std::vector<std::size_t> indices_of_devices(const Plan& plan, const Cluster& cluster)
{
  std::unordered_map<std::string_view, std::size_t> index_of;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) index_of.emplace(cluster.devices[i].name, i);
  std::vector<std::size_t> indices;
  for (const auto& name : devices_of(plan)) {
    const auto found = index_of.find(name);
    ensure(found != index_of.end(), "the devices of a checked plan are on its platform");
    indices.push_back(found->second);
  }
  return indices;
}

PlayerRates nominal_rates(const Plan& plan, const Cluster& cluster)
{
  PlayerRates rates;
  std::vector<std::size_t> endpoint_of_rank = indices_of_devices(plan, cluster);
  for (const std::size_t index : endpoint_of_rank) {
    const Device& device = cluster.devices[index];
    rates.sites.push_back(device.site);
    rates.interference.push_back(device.interference);
    rates.machines.push_back(device.machine ? machine_rates(plan, device, cluster) : MachineRates{});
  }
  if (plan.data_server) {
    endpoint_of_rank.push_back(cluster.data_server_index());
    rates.sites.emplace_back();
    rates.interference.push_back(1);
  }
  if (std::all_of(rates.interference.begin(), rates.interference.end(), [](double each) { return each == 1; })) {
    rates.interference.clear();
  }
  if (plan.goal.has_free_transfers()) return rates;
  for (const std::size_t endpoint : endpoint_of_rank) {
    const bool is_device = endpoint < cluster.devices.size();
    rates.collective_starts.push_back(is_device ? cluster.devices[endpoint].collective_start : Seconds(0));
  }
  rates.transfer = [endpoint_of_rank, network = cluster.network](std::size_t from, std::size_t to, Bytes size) {
    const Path path = network->path(endpoint_of_rank.at(from), endpoint_of_rank.at(to));
    return TransferTimes{path.latency, path.data_time(size)};
  };
  rates.shared_links = [endpoint_of_rank, network = cluster.network](std::size_t from, std::size_t to) {
    return network->shared_links(endpoint_of_rank.at(from), endpoint_of_rank.at(to));
  };
  return rates;
}

}  // namespace isobar

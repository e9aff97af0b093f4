#include "sim/platform/machines.hpp"

#include "core/errors.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

namespace isobar::sim {

namespace {

MachineLink link_over(const Routes& routes, std::size_t machine, const Route& in, const Route& out)
{
  return {machine, in.path(), out.path(), routes.shared_links(in), routes.shared_links(out)};
}

/// The route between two hosts; none if there is none.
std::optional<Route> route_between(const Routes& routes, const std::string& from, const std::string& to)
{
  const auto* engine = sg4::Engine::get_instance();
  try {
    Route route = routes.between(*engine->host_by_name(from), *engine->host_by_name(to));
    if (!route.missing()) return route;
  } catch (const std::exception&) {  // SimGrid's way to say that two zones have no route
  }
  return std::nullopt;
}

/// Looks for the machines of the devices of one platform file.
class MachineSearch {
 public:
  MachineSearch(const std::string& file, const Endpoints& endpoints, const Routes& routes,
                const ExpectFault& expect_fault)
      : file_(file), machines_(endpoints.machines), routes_(routes), expect_fault_(expect_fault)
  {
    for (std::size_t i = 0; i < machines_.size(); ++i) index_of_[machines_[i]->name] = i;
  }

  std::optional<MachineLink> machine_of(const ScannedHost& device) const
  {
    if (device.props.host) return checked(device, index_of_.at(*device.props.host));
    const auto nearest = nearest_to(device);
    if (!nearest) return std::nullopt;
    return checked(device, *nearest);
  }

 private:
  MachineLink checked(const ScannedHost& device, std::size_t index) const
  {
    const ScannedHost& machine = *machines_[index];
    const std::string place = place_of_host(file_, device);
    const auto route = [&](const ScannedHost& from, const ScannedHost& to, const char* direction) {
      const std::string missing = fmt::format("{}: no route {} its machine {}; a device needs one in each direction",
                                              place, direction, machine.name);
      return checked_route(routes_, from, to, place, missing, expect_fault_);
    };
    const Route in = route(machine, device, "from");
    return link_over(routes_, index, in, route(device, machine, "to"));
  }

  std::optional<std::size_t> nearest_to(const ScannedHost& device) const
  {
    std::optional<std::size_t> nearest;
    std::pair<double, double> least;  // latency there and back, - bandwidth
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      const std::string& machine = machines_[i]->name;
      expect_fault_(
          fmt::format("{}: SimGrid finds no route to the machine {}; name the device's own with the prop host",
                      place_of_host(file_, device), machine));
      const auto in = route_between(routes_, machine, device.name);
      const auto out = route_between(routes_, device.name, machine);
      if (!in || !out) continue;
      const std::pair distance((in->latency + out->latency).value,
                               -std::min(in->path().bandwidth, out->path().bandwidth).value);
      if (nearest && distance >= least) continue;
      nearest = i;
      least = distance;
    }
    return nearest;
  }

  const std::string& file_;
  const std::vector<const ScannedHost*>& machines_;
  const Routes& routes_;
  const ExpectFault& expect_fault_;
  std::unordered_map<std::string, std::size_t> index_of_;
};

}  // namespace

Machine machine_of(const ScannedHost& host)
{
  Machine machine;
  machine.name = host.name;
  machine.memory = *host.props.memory;
  machine.busy_update_speed = host.speeds.front();
  machine.update_speed = host.speeds.back();
  machine.cores = static_cast<std::size_t>(sg4::Engine::get_instance()->host_by_name(host.name)->get_core_count());
  const auto disk = std::ranges::find_if(host.disks, [](const ScannedDisk& each) { return each.capacity.has_value(); });
  if (disk != host.disks.end()) machine.disk = Disk{disk->name, *disk->capacity, disk->read, disk->write};
  return machine;
}

std::vector<std::optional<MachineLink>> machine_links(const std::string& file, const Endpoints& endpoints,
                                                      const Routes& routes, const ExpectFault& expect_fault)
{
  const MachineSearch search(file, endpoints, routes, expect_fault);
  std::vector<std::optional<MachineLink>> links;
  for (const auto* device : endpoints.devices) links.push_back(search.machine_of(*device));
  return links;
}

MachineLink current_link(const Routes& routes, const Cluster& cluster, const Device& device)
{
  const std::size_t index = device.machine->machine;
  const std::string& machine = cluster.machines[index].name;
  return link_over(routes, index, route_between(routes, machine, device.name).value(),
                   route_between(routes, device.name, machine).value());
}

}  // namespace isobar::sim

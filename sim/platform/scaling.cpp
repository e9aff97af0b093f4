#include "sim/platform/scaling.hpp"

#include "core/errors.hpp"
#include "sim/platform/limits.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace isobar::sim {

namespace {

[[noreturn]] void refuse_scaled(const Cluster& cluster, double factor, const char* what, const std::string& whose)
{
  throw InputError(cluster.name, fmt::format("scaled by {}, the {} of {} is out of range", factor, what, shown(whose)));
}

}  // namespace

void scale_devices(Cluster& cluster, Property property, double factor, const std::optional<std::string>& name)
{
  if (name && !cluster.device_index(*name)) {
    throw InputError(cluster.name, fmt::format("there is no device {} to scale", shown(*name)));
  }
  for (auto& device : cluster.devices) {
    if (name && device.name != *name) continue;
    if (property == Property::Memory) {
      device.memory = factor * device.memory;
      if (!std::isfinite(device.memory.value)) refuse_scaled(cluster, factor, "memory", device.name);
      continue;
    }
    device.pace *= factor;
    device.speed = factor * device.speed;
    if (!is_rate(device.speed.value)) refuse_scaled(cluster, factor, "speed", device.name);
    for (auto& [dtype, speed] : device.speed_in) speed = factor * speed;
  }
}

void scale_machines(Cluster& cluster, double factor, const std::optional<std::string>& name)
{
  bool is_found = !name;
  for (auto& machine : cluster.machines) {
    if (name && machine.name != *name) continue;
    is_found = true;
    for (FlopsPerSecond* speed : {&machine.update_speed, &machine.busy_update_speed}) {
      *speed = factor * *speed;
      if (!is_rate(speed->value)) refuse_scaled(cluster, factor, "update speed", machine.name);
    }
  }
  if (!is_found) throw InputError(cluster.name, fmt::format("there is no machine {} to scale", shown(*name)));
  if (name) return;
  for (auto& [system, measured] : cluster.systems) {
    for (auto* speed : {&measured.update_speed, &measured.busy_update_speed}) {
      if (*speed) *speed = factor * **speed;
    }
  }
}

void scale_links(const Cluster& cluster, const Routes& routes, Property property, double factor,
                 const std::optional<std::string>& name)
{
  std::vector<sg4::Link*> links;
  if (!name) {
    links = sg4::Engine::get_instance()->get_all_links();
  } else if (auto* link = sg4::Link::by_name_or_null(*name)) {
    links.push_back(link);
  } else {
    throw InputError(cluster.name, fmt::format("there is no link {} to scale", shown(*name)));
  }
  for (auto* link : links) {
    if (routes.has_profile(*link)) {
      throw InputError(cluster.name,
                       fmt::format("link {} has a profile; only links without one can be scaled", link->get_name()));
    }
    if (property == Property::Bandwidth) {
      const double bandwidth = factor * link->get_bandwidth();
      if (!is_rate(bandwidth)) refuse_scaled(cluster, factor, "bandwidth", link->get_name());
      link->set_bandwidth(bandwidth);
    } else {
      const double latency = factor * link->get_latency();
      if (latency > most_latency.value) refuse_scaled(cluster, factor, "latency", link->get_name());
      link->set_latency(latency);
    }
  }
}

}  // namespace isobar::sim

#include "core/cluster/cluster.hpp"

#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace isobar {

FlopsPerSecond Device::speed_at(DType dtype) const
{
  const auto given = speed_in.find(dtype);
  return given == speed_in.end() ? speed : given->second;
}

Path Network::path_with(std::size_t from, std::size_t to, const std::string& /*link*/, double /*factor*/) const
{
  return path(from, to);
}

std::vector<SharedLink> Network::shared_links(std::size_t /*from*/, std::size_t /*to*/) const
{
  return {};
}

MatrixNetwork::MatrixNetwork(std::size_t endpoints, std::vector<Path> paths)
    : endpoints_(endpoints), paths_(std::move(paths))
{
  ensure(paths_.size() == endpoints * endpoints, "a matrix network needs a path for each pair of endpoints");
}

std::shared_ptr<const MatrixNetwork> MatrixNetwork::uniform(std::size_t endpoints, Path path)
{
  return std::make_shared<MatrixNetwork>(endpoints, std::vector<Path>(endpoints * endpoints, path));
}

std::vector<std::string> MatrixNetwork::links(std::size_t from, std::size_t to) const
{
  return {fmt::format("{}-{}", from, to)};
}

Path MatrixNetwork::path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const
{
  Path result = path(from, to);
  if (link == links(from, to).front()) result.bandwidth = result.bandwidth * factor;
  return result;
}

std::optional<std::size_t> Cluster::device_index(const std::string& device_name) const
{
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].name == device_name) return i;
  }
  return std::nullopt;
}

namespace {

/// A network restricted to some of its endpoints.
class PartOfNetwork : public Network {
 public:
  /// `endpoints[i]` is the whole network's index of endpoint i.
  PartOfNetwork(std::shared_ptr<const Network> whole, std::vector<std::size_t> endpoints)
      : whole_(std::move(whole)), endpoints_(std::move(endpoints))
  {
  }

  Path path(std::size_t from, std::size_t to) const override { return whole_->path(endpoints_[from], endpoints_[to]); }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override
  {
    return whole_->links(endpoints_[from], endpoints_[to]);
  }
  Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const override
  {
    return whole_->path_with(endpoints_[from], endpoints_[to], link, factor);
  }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    return whole_->shared_links(endpoints_[from], endpoints_[to]);
  }

 private:
  std::shared_ptr<const Network> whole_;
  std::vector<std::size_t> endpoints_;
};

std::vector<std::string> names_of_devices(const Cluster& cluster)
{
  std::vector<std::string> names;
  for (const auto& device : cluster.devices) names.push_back(device.name);
  return names;
}

/// The sites that have devices, in the order of the devices.
std::vector<std::string> names_of_sites(const Cluster& cluster)
{
  std::vector<std::string> names;
  for (const auto& device : cluster.devices) {
    const bool is_new = !device.site.empty() && std::ranges::find(names, device.site) == names.end();
    if (is_new) names.push_back(device.site);
  }
  return names;
}

/// The names as a message lists them.
std::string first_of(const std::vector<std::string>& names)
{
  constexpr std::size_t most_shown = 20;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), most_shown); ++i) list += (i == 0 ? "" : ", ") + shown(names[i]);
  return list + (names.size() > most_shown ? ", …" : "");
}

}  // namespace

std::vector<std::string> devices_named(const Cluster& cluster, const std::vector<std::string>& names,
                                       const std::string& where)
{
  std::vector<std::string> devices;
  const auto add = [&devices](const std::string& name) {
    if (std::ranges::find(devices, name) == devices.end()) devices.push_back(name);
  };
  const auto sites = names_of_sites(cluster);
  for (const auto& name : names) {
    if (cluster.device_index(name)) {
      add(name);
    } else if (std::ranges::find(sites, name) != sites.end()) {
      for (const auto& device : cluster.devices) {
        if (device.site == name) add(device.name);
      }
    } else if (sites.empty()) {
      throw InputError(where, fmt::format("{} is not a device of {}; its devices are {}", in_quotes(name),
                                          on_one_line(cluster.name), first_of(names_of_devices(cluster))));
    } else {
      throw InputError(
          where,
          fmt::format("{} is neither a device nor a site of {}; its devices are {}; its sites are {}", in_quotes(name),
                      on_one_line(cluster.name), first_of(names_of_devices(cluster)), first_of(sites)));
    }
  }
  return devices;
}

Cluster without_devices(const Cluster& cluster, const std::vector<std::string>& names, const std::string& where)
{
  for (const auto& name : names) {
    if (cluster.device_index(name)) continue;
    throw InputError(where, fmt::format("{} is not a device of {}; its devices are {}", in_quotes(name),
                                        on_one_line(cluster.name), first_of(names_of_devices(cluster))));
  }
  Cluster rest = cluster;
  rest.devices.clear();
  std::vector<std::size_t> endpoints;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    if (std::find(names.begin(), names.end(), cluster.devices[i].name) != names.end()) continue;
    rest.devices.push_back(cluster.devices[i]);
    endpoints.push_back(i);
  }
  if (rest.devices.empty()) throw InputError(where, fmt::format("leaves out every device of {}", cluster.name));
  if (cluster.data_server) endpoints.push_back(cluster.data_server_index());
  rest.network = std::make_shared<const PartOfNetwork>(cluster.network, std::move(endpoints));
  return rest;
}

void set_speed(Cluster& cluster, const std::string& device_type, FlopsPerSecond speed)
{
  for (auto& device : cluster.devices) {
    if (!is_same_device_type(device.type, device_type)) continue;
    device.speed = speed;
    device.speed_in.clear();
  }
}

FlopsPerSecond reference_speed(const Cluster& cluster, DType dtype)
{
  if (cluster.measured_speed) return *cluster.measured_speed;
  FlopsPerSecond fastest;
  for (const auto& device : cluster.devices) fastest = std::max(fastest, device.speed_at(dtype));
  return fastest;
}

namespace {

using Json = nlohmann::ordered_json;

Json machine_to_json(const Machine& machine)
{
  Json entry = {{"name", machine.name},
                {"memory_bytes", machine.memory.value},
                {"update_flops_per_s", machine.update_speed.value},
                {"busy_update_flops_per_s", machine.busy_update_speed.value},
                {"disk", nullptr}};
  if (machine.disk) {
    entry["disk"] = {{"name", machine.disk->name},
                     {"capacity_bytes", machine.disk->capacity.value},
                     {"read_bytes_per_s", machine.disk->read.value},
                     {"write_bytes_per_s", machine.disk->write.value}};
  }
  return entry;
}

Json link_to_json(const MachineLink& link, const Cluster& cluster)
{
  return {{"name", cluster.machines[link.machine].name},
          {"in_latency_s", link.in.latency.value},
          {"in_bytes_per_s", link.in.bandwidth.value},
          {"out_latency_s", link.out.latency.value},
          {"out_bytes_per_s", link.out.bandwidth.value}};
}

}  // namespace

std::string cluster_to_json(const Cluster& cluster)
{
  Json devices = Json::array();
  for (const auto& device : cluster.devices) {
    Json entry = {{"name", device.name},
                  {"type", device.type},
                  {"site", device.site},
                  {"speed_flops_per_s", device.speed.value},
                  {"memory_bytes", device.memory.value}};
    for (const auto& [dtype, speed] : device.speed_in) {
      entry[fmt::format("speed_{}_flops_per_s", name_of(dtype))] = speed.value;
    }
    entry["price_usd_per_hour"] = device.price_usd_per_hour ? Json(*device.price_usd_per_hour) : Json(nullptr);
    if (device.interference != 1) entry["interference"] = device.interference;
    if (device.pace != 1) entry["pace"] = device.pace;
    if (device.collective_start > Seconds(0)) entry["collective_start_s"] = device.collective_start.value;
    if (!cluster.machines.empty()) {
      entry["machine"] = device.machine ? link_to_json(*device.machine, cluster) : Json(nullptr);
    }
    devices.push_back(std::move(entry));
  }
  const std::size_t endpoints = cluster.devices.size() + (cluster.data_server ? 1 : 0);
  Json latency = Json::array();
  Json bandwidth = Json::array();
  for (std::size_t from = 0; from < endpoints; ++from) {
    Json latency_row = Json::array();
    Json bandwidth_row = Json::array();
    for (std::size_t to = 0; to < endpoints; ++to) {
      const bool same = from == to;
      const Path path = same ? Path{} : cluster.path(from, to);
      latency_row.push_back(same ? Json(nullptr) : Json(path.latency.value));
      bandwidth_row.push_back(same ? Json(nullptr) : Json(path.bandwidth.value));
    }
    latency.push_back(std::move(latency_row));
    bandwidth.push_back(std::move(bandwidth_row));
  }
  Json document = {{"schema", "isobar-cluster/1"},
                   {"name", cluster.name},
                   {"devices", std::move(devices)},
                   {"data_server", cluster.data_server ? Json(*cluster.data_server) : Json(nullptr)},
                   {"latency_s", std::move(latency)},
                   {"bandwidth_bytes_per_s", std::move(bandwidth)}};
  if (!cluster.machines.empty()) {
    document["machines"] = Json::array();
    for (const auto& machine : cluster.machines) document["machines"].push_back(machine_to_json(machine));
  }
  return json_line(document);
}

}  // namespace isobar

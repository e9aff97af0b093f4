#include "exec/launch/world_profile.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/xml_writer.hpp"
#include "exec/links/side_channel.hpp"
#include "exec/links/tcp_world.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;

constexpr Seconds profile_patience{600};

/// Number of a device: equal for all processes that use it, different for all other devices of all machines; that of ""
/// is the machine's. It has 52 bits, which a double can hold.
double device_number(const std::string& device)
{
  const std::string hash = fingerprint(read_file("/proc/sys/kernel/random/boot_id") + device);
  return static_cast<double>(std::stoull(hash.substr(0, 13), nullptr, 16));
}

/// For each rank, the first rank on the same device, or with "" on the same machine.
std::vector<std::size_t> first_rank_of_device(TcpWorld& world, std::size_t rank, std::size_t ranks,
                                              const std::string& device)
{
  std::vector<double> numbers(ranks);
  numbers[rank] = device_number(device);
  world.all_reduce_sum(std::span(numbers), profile_patience);
  std::vector<std::size_t> first;
  for (const double number : numbers) {
    first.push_back(static_cast<std::size_t>(std::find(numbers.begin(), numbers.end(), number) - numbers.begin()));
  }
  return first;
}

/// Measures the machine from each device of it, one at a time. `first`: for each rank, the first on its device.
MachineProfile measure_in_turn(TcpWorld& world, std::size_t rank, const std::vector<std::size_t>& first,
                               const std::vector<std::size_t>& first_of_machine,
                               const std::function<MachineProfile()>& measure)
{
  std::vector<std::size_t> turns(first.size());  // of a rank: the number of devices of its machine that come before
  for (std::size_t i = 0; i < first.size(); ++i) {
    for (std::size_t before = 0; before < first[i]; ++before) {
      if (first[before] == before && first_of_machine[before] == first_of_machine[i]) ++turns[i];
    }
  }
  MachineProfile machine;
  for (std::size_t turn = 0; turn <= *std::max_element(turns.begin(), turns.end()); ++turn) {
    if (first[rank] == rank && turns[rank] == turn) machine = measure();
    world.wait_for_all(profile_patience);
  }
  return machine;
}

/// Profile of a device for each of the `ranks` that share it.
DeviceProfile shared(DeviceProfile device, std::size_t ranks)
{
  device.memory = Bytes(device.memory.value / static_cast<double>(ranks));
  return device;
}

/// A one-way route over a link of its own.
struct Route {
  std::string from;
  std::string to;
  std::string link;
  Seconds latency;
  BytesPerSecond bandwidth;
};

/// Name of the machine in which a rank is the first.
std::string machine_of_rank(std::size_t first)
{
  return fmt::format("machine-{}", first);
}

std::string in_bytes(Bytes size)
{
  return fmt::format("{:.0f} B", size.value);
}

void write_prop(XmlWriter& xml, const char* name, const std::string& value)
{
  xml.element("prop", {{"id", name}, {"value", value}});
}

void write_machine(XmlWriter& xml, const std::string& name, const MachineProfile& machine)
{
  xml.open("host",
           {{"id", name},
            {"speed", fmt::format("{:.17g}f,{:.17g}f", machine.busy_update_speed.value, machine.update_speed.value)}});
  write_prop(xml, "role", "machine");
  write_prop(xml, "memory", in_bytes(machine.memory));
  if (machine.disk) {
    xml.open("disk",
             {{"id", name + "-disk"},
              {"read_bw", fmt::format("{:.17g}Bps", machine.disk->read.value)},
              {"write_bw", fmt::format("{:.17g}Bps", machine.disk->write.value)}},
             XmlWriter::Layout::SameLine);
    write_prop(xml, "capacity", in_bytes(machine.disk->capacity));
    xml.close();
  }
  xml.close();
}

Json json_of(const LinkMeasurement& link)
{
  Json sizes = Json::array();
  for (const auto& [size, time] : link.sizes) sizes.push_back({size.value, time.value});
  return {link.from, link.to, link.connections, link.latency.value, link.bandwidth.value, std::move(sizes)};
}

LinkMeasurement link_from(const Json& json)
{
  LinkMeasurement link{json.at(0), json.at(1), json.at(2), Seconds(json.at(3)), BytesPerSecond(json.at(4)), {}};
  for (const auto& size : json.at(5)) link.sizes.push_back({Bytes(size.at(0)), Seconds(size.at(1))});
  return link;
}

}  // namespace

WorldProfile measure_this_machine(std::size_t ranks, std::size_t most_connections, const Measurements& measure)
{
  WorldProfile world;
  DeviceProfile device = measure.device();
  if (measure.machine) device.machine = measure.machine();
  world.devices.assign(ranks, shared(std::move(device), ranks));
  world.first_in_machine.assign(ranks, 0);
  for (const std::size_t connections : connection_counts(most_connections)) {
    LinkMeasurement link = probe_loopback(connections);
    for (link.from = 0; link.from < ranks; ++link.from) {
      for (link.to = 0; link.to < ranks; ++link.to) {
        if (link.from != link.to) world.links.push_back(link);
      }
    }
  }
  return world;
}

std::optional<WorldProfile> measure_world(std::size_t rank, const std::vector<Endpoint>& ranks,
                                          std::size_t most_connections, const std::string& device,
                                          const Measurements& measure, TcpOptions options)
{
  options.run_id = measure.machine ? "profile of machines" : "profile";  // ranks that disagree refuse each other
  options.connect_deadline = profile_patience;
  std::vector<std::size_t> first;
  std::vector<std::size_t> first_of_machine;
  Json own = {{"profile", nullptr}, {"links", Json::array()}};
  {
    TcpWorld world(rank, ranks, {}, options);
    first = first_rank_of_device(world, rank, ranks.size(), device);
    first_of_machine = first_rank_of_device(world, rank, ranks.size(), "");
  }
  DeviceProfile own_device;
  if (first[rank] == rank) own_device = measure.device();
  if (measure.machine) {
    TcpWorld world(rank, ranks, {}, options);
    own_device.machine = measure_in_turn(world, rank, first, first_of_machine, measure.machine);
  }
  if (first[rank] == rank) own["profile"] = profile_to_json(own_device);
  for (const auto& link : probe_links(rank, ranks, most_connections, options)) own["links"].push_back(json_of(link));

  TcpWorld world(rank, ranks, SideChannel::links(ranks.size()), options);
  const auto texts = SideChannel(world, rank, ranks.size(), profile_patience).gather(own.dump(), profile_patience);
  if (rank != 0) return std::nullopt;
  WorldProfile measured;
  std::vector<DeviceProfile> profiles(ranks.size());
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    const std::string name = fmt::format("rank {}'s profile", other);
    try {
      const Json json = Json::parse(texts[other]);
      if (first[other] == other) profiles[other] = profile_from_json(json.at("profile"), name);
      for (const auto& link : json.at("links")) measured.links.push_back(link_from(link));
    } catch (const Json::exception& error) {
      throw EnvironmentError(fmt::format("{} is malformed: {}", name, error.what()));
    }
  }
  for (const std::size_t device_of : first) {
    const auto count = static_cast<std::size_t>(std::count(first.begin(), first.end(), device_of));
    measured.devices.push_back(shared(profiles[device_of], count));
  }
  measured.first_in_machine = first_of_machine;
  return measured;
}

std::string platform_of(const WorldProfile& world, const std::vector<double>& slowdowns, std::size_t connections)
{
  XmlWriter xml;
  xml.prolog("<?xml version='1.0'?>");
  xml.prolog("<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">");
  xml.comment(fmt::format("Measured by isobar profile; links with TCP connections in parallel: {}", connections));
  xml.open("platform", {{"version", "4.1"}});
  xml.open("zone", {{"id", "world"}, {"routing", "Full"}});
  for (std::size_t i = 0; i < world.devices.size(); ++i) {
    const DeviceProfile& device = world.devices[i];
    xml.open("host", {{"id", fmt::format("rank-{}", i)},
                      {"speed", fmt::format("{:.17g}f", device.speed.value / slowdowns[i])}});
    write_prop(xml, "memory", in_bytes(device.memory));
    if (slowdowns[i] == 1) write_prop(xml, "device", device.device);
    if (device.machine) write_prop(xml, "host", machine_of_rank(world.first_in_machine[i]));
    xml.close();
  }
  for (std::size_t i = 0; i < world.devices.size(); ++i) {
    const auto& machine = world.devices[i].machine;
    if (machine && world.first_in_machine[i] == i) write_machine(xml, machine_of_rank(i), *machine);
  }
  std::vector<Route> routes;
  for (const auto& link : world.links) {
    if (link.connections != connections) continue;
    routes.push_back({fmt::format("rank-{}", link.from), fmt::format("rank-{}", link.to),
                      fmt::format("{}-{}", link.from, link.to), link.latency, link.bandwidth});
  }
  for (std::size_t i = 0; i < world.devices.size(); ++i) {
    if (!world.devices[i].machine) continue;
    const auto& [in, out] = std::pair(world.devices[i].machine->in, world.devices[i].machine->out);
    const std::string device = fmt::format("rank-{}", i);
    const std::string machine = machine_of_rank(world.first_in_machine[i]);
    routes.push_back({machine, device, fmt::format("in-{}", i), in.latency, in.bandwidth});
    routes.push_back({device, machine, fmt::format("out-{}", i), out.latency, out.bandwidth});
  }
  for (const auto& route : routes) {
    xml.element("link", {{"id", route.link},
                         {"bandwidth", fmt::format("{:.17g}Bps", route.bandwidth.value)},
                         {"latency", fmt::format("{:.17g}s", route.latency.value)}});
  }
  for (const auto& route : routes) {
    xml.open("route", {{"src", route.from}, {"dst", route.to}, {"symmetrical", "NO"}}, XmlWriter::Layout::SameLine);
    xml.element("link_ctn", {{"id", route.link}});
    xml.close();
  }
  xml.close();
  xml.close();
  return std::move(xml).finished();
}

std::string links_to_csv(const std::vector<LinkMeasurement>& links)
{
  std::string text = "from,to,flows,latency_s,bandwidth_bytes_per_s,size_bytes,time_s\n";
  for (const auto& link : links) {
    for (const auto& [size, time] : link.sizes) {
      text += fmt::format("{},{},{},{},{},{},{}\n", link.from, link.to, link.connections, link.latency.value,
                          link.bandwidth.value, size.value, time.value);
    }
  }
  return text;
}

}  // namespace isobar::exec

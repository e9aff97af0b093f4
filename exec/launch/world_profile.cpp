#include "exec/launch/world_profile.hpp"

#include "core/base/files.hpp"
#include "core/base/xml_writer.hpp"
#include "core/errors.hpp"
#include "exec/net/side_channel.hpp"
#include "exec/net/tcp_world.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;

constexpr Seconds patience{600};
constexpr auto run_id = "profile";

/// Number of a device: equal for all processes that use it, different for all other devices of all machines. It has 52
/// bits, which a double can hold.
double device_number(const std::string& device)
{
  const std::string hash = fingerprint(read_file("/proc/sys/kernel/random/boot_id") + device);
  return static_cast<double>(std::stoull(hash.substr(0, 13), nullptr, 16));
}

/// For each rank, the first rank on the same device.
std::vector<std::size_t> first_rank_of_device(TcpWorld& world, std::size_t rank, std::size_t ranks,
                                              const std::string& device)
{
  std::vector<double> numbers(ranks);
  numbers[rank] = device_number(device);
  world.all_reduce_sum(std::span(numbers), patience);
  std::vector<std::size_t> first;
  for (const double number : numbers) {
    first.push_back(static_cast<std::size_t>(std::find(numbers.begin(), numbers.end(), number) - numbers.begin()));
  }
  return first;
}

/// Profile of a device for each of the `ranks` that share it.
DeviceProfile shared(DeviceProfile device, std::size_t ranks)
{
  device.memory = Bytes(device.memory.value / static_cast<double>(ranks));
  return device;
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

WorldProfile measure_this_machine(std::size_t ranks, std::size_t most_connections, const MeasureDevice& measure_device)
{
  WorldProfile world;
  world.devices.assign(ranks, shared(measure_device(), ranks));
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
                                          const MeasureDevice& measure_device, TcpOptions options)
{
  options.run_id = run_id;
  options.connect_deadline = patience;
  std::vector<std::size_t> first;
  Json own = {{"profile", nullptr}, {"links", Json::array()}};
  {
    TcpWorld world(rank, ranks, {}, options);
    first = first_rank_of_device(world, rank, ranks.size(), device);
  }
  if (first[rank] == rank) own["profile"] = profile_to_json(measure_device());
  for (const auto& link : probe_links(rank, ranks, most_connections, options)) own["links"].push_back(json_of(link));

  TcpWorld world(rank, ranks, SideChannel::links(ranks.size()), options);
  const auto texts = SideChannel(world, rank, ranks.size(), patience).gather(own.dump(), patience);
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
    xml.element("prop", {{"id", "memory"}, {"value", fmt::format("{:.0f} B", device.memory.value)}});
    if (slowdowns[i] == 1) xml.element("prop", {{"id", "device"}, {"value", device.device}});
    xml.close();
  }
  for (const auto& link : world.links) {
    if (link.connections != connections) continue;
    xml.element("link", {{"id", fmt::format("{}-{}", link.from, link.to)},
                         {"bandwidth", fmt::format("{:.17g}Bps", link.bandwidth.value)},
                         {"latency", fmt::format("{:.17g}s", link.latency.value)}});
  }
  for (const auto& link : world.links) {
    if (link.connections != connections) continue;
    xml.open(
        "route",
        {{"src", fmt::format("rank-{}", link.from)}, {"dst", fmt::format("rank-{}", link.to)}, {"symmetrical", "NO"}},
        XmlWriter::Layout::SameLine);
    xml.element("link_ctn", {{"id", fmt::format("{}-{}", link.from, link.to)}});
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

#include "sim/generate/platform_generator.hpp"

#include "core/base/pcg64.hpp"
#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"
#include "sim/generate/generator_options.hpp"
#include "sim/generate/platform_xml.hpp"

#include <fmt/format.h>

namespace isobar::sim {

namespace {

constexpr double mebibyte = 1024.0 * 1024;

/// A device without a type.
template <typename Options>
Device plain_device(const Options& options)
{
  Device device;
  device.speed = options.speed.value_or(plain_speed);
  device.memory = options.memory.value_or(plain_memory);
  return device;
}

/// Appends the options of the network of sites.
template <typename Options>
void check_network(GeneratorCommand& command, const Options& options)
{
  command.positive("--lan-bandwidth", options.lan_bandwidth)
      .not_negative("--lan-rtt", options.lan_rtt)
      .positive("--wan-bandwidth", options.wan_bandwidth)
      .not_negative("--wan-rtt", options.wan_rtt);
  if (options.egress) command.positive("--egress", *options.egress);
  if (options.ingress) command.positive("--ingress", *options.ingress);
  command.window_law(options.flows, options.window);
  if (options.wan_rtt < options.lan_rtt) {
    throw InputError("--wan-rtt", fmt::format("{} is less than the {} within a site; write at least that",
                                              option_of(options.wan_rtt), option_of(options.lan_rtt)));
  }
}

/// `count` sites with the network of the options, each pair joined alike. Their devices or nodes are still to come.
template <typename Options>
Sites joined_sites(std::size_t count, const Options& options)
{
  Sites sites;
  for (std::size_t i = 0; i < count; ++i) {
    Site& site = sites.sites.emplace_back();
    site.name = fmt::format("site-{}", i);
    site.lan_bandwidth = options.lan_bandwidth;
    site.lan_rtt = options.lan_rtt;
    site.egress = options.egress;
    site.ingress = options.ingress;
  }
  sites.paths.assign(count * count, {options.wan_bandwidth, options.wan_rtt});
  sites.flows = options.flows;
  sites.window = options.window.value_or(measured_window);
  return sites;
}

void append(std::vector<std::string>& notes, std::vector<std::string> more)
{
  notes.insert(notes.end(), more.begin(), more.end());
}

}  // namespace

std::string generate_sky(const SkyOptions& options)
{
  GeneratorCommand command("isobar platform generate sky");
  command.count("--nodes", options.nodes, 2, most_devices)
      .spread("--speed-spread", options.speed_spread)
      .positive("--memory", options.memory)
      .positive("--bandwidth", options.bandwidth)
      .not_negative("--latency", options.latency);

  const auto& gpu = device_type("P100-PCIE-16GB");
  const std::vector<std::string> notes = {
      "The emulated cluster of Sky Computing (Zhu, Li, You, arXiv 2202.11836). Factors and random streams follow its "
      "code,",
      "hpcaitech/SkyComputing, commit 456c749, Apache-2.0; the prop made_by holds the command that makes this file "
      "again.",
      "",
      "node-0 is the data server and holds no layers; node-1 and on are the workers. uS[r] is number r of numpy's",
      "default_rng(S).random(), r the worker's number.",
      fmt::format("Speed: {} over 1 + {} u32[r]. The published factor is 1 + u32[r]; {} is the float32 peak of a",
                  prop_of(gpu.float32), options.speed_spread - 1, prop_of(gpu.float32)),
      fmt::format("{} ({}). The paper does not name its GPU; that it is a P100 is inferred from its cluster.", gpu.name,
                  gpu.source),
      fmt::format(
          "Memory: {} over 1 + 2 u22[r], the published factor; the default, 15780 MiB, is 16280 MiB of that GPU",
          prop_of(options.memory)),
      "less the 500 MiB that the code keeps back. The code measures the GPU that it runs on.",
      "Network: a worker's link has the server's bandwidth over 1 + u32[r]. The published code defines this factor, "
      "the same",
      "stream as the speed's, but never applied it. Bandwidth and latency are not published; they are the command's."};

  Pcg64 memory_stream(22);
  Pcg64 speed_stream(32);
  Star star{"sky", {}, {}};
  for (std::size_t rank = 0; rank < options.nodes; ++rank) {
    const double memory_divisor = 1 + 2 * memory_stream.uniform();
    const double u32 = speed_stream.uniform();
    StarHost host{fmt::format("node-{}", rank), gpu.float32, {}, options.bandwidth, options.latency};
    if (rank == 0) {
      host.props = {{"role", "data-server"}};
    } else {
      host.speed = gpu.float32 / (1 + (options.speed_spread - 1) * u32);
      host.props = {{"memory", fmt::format("{} MiB", options.memory.value / mebibyte / memory_divisor)}};
      host.bandwidth = options.bandwidth / (1 + u32);
    }
    star.hosts.push_back(std::move(host));
  }
  return platform_of_star(command.text(), notes, std::move(star));
}

std::string generate_star(const StarOptions& options)
{
  GeneratorCommand command("isobar platform generate star");
  command.devices("--devices", options.devices)
      .plain_device(options.devices, options.speed, options.memory)
      .positive("--bandwidth", options.bandwidth)
      .not_negative("--latency", options.latency)
      .spread("--speed-spread", options.speed_spread)
      .spread("--memory-spread", options.memory_spread)
      .spread("--bandwidth-spread", options.bandwidth_spread)
      .seed("--seed", options.seed);

  std::vector<std::string> notes = {
      "Devices on links of their own to one switch. Made up: the prop made_by holds the command that makes this file "
      "again,",
      "and every number that no data sheet below gives is that command's."};
  append(notes, notes_on(options.devices));
  const bool slowed = options.speed_spread > 1;
  if (slowed || options.memory_spread > 1 || options.bandwidth_spread > 1) {
    notes.push_back(
        fmt::format("Device i: speed over 1 + {} u[3i], memory over 1 + {} u[3i+1], bandwidth over 1 + {} u[3i+2], "
                    "where u is numpy's",
                    options.speed_spread - 1, options.memory_spread - 1, options.bandwidth_spread - 1));
    notes.push_back(fmt::format("default_rng({}).random().", options.seed));
  }
  if (slowed)
    notes.push_back("Slowed devices carry no prop device: a measured profile of their type would not know the factor.");

  Star star{"star", {}, {}};
  Pcg64 stream(options.seed);
  for (const auto& group : options.devices) {
    for (std::size_t i = 0; i < group.count; ++i) {
      const double speed_divisor = 1 + (options.speed_spread - 1) * stream.uniform();
      const double memory_divisor = 1 + (options.memory_spread - 1) * stream.uniform();
      const double bandwidth_divisor = 1 + (options.bandwidth_spread - 1) * stream.uniform();
      Device device = device_of(group.type, plain_device(options));
      device.name = fmt::format("device-{}", star.hosts.size());
      if (slowed) device.type.clear();
      device.speed = device.speed / speed_divisor;
      for (auto& [dtype, speed] : device.speed_in) speed = speed / speed_divisor;
      device.memory = device.memory / memory_divisor;
      star.hosts.push_back(host_of(device, options.bandwidth / bandwidth_divisor, options.latency));
    }
  }
  return platform_of_star(command.text(), notes, std::move(star));
}

std::string generate_sites(const SitesOptions& options)
{
  GeneratorCommand command("isobar platform generate sites");
  std::vector<std::vector<DeviceGroup>> devices = options.site_devices;
  if (devices.empty()) {
    command.count("--sites", options.sites, 1, most_sites).devices("--devices", options.devices, options.sites);
    devices.assign(options.sites, options.devices);
  } else {
    command.site_devices("--site-devices", devices);
  }
  std::vector<DeviceGroup> groups;
  if (options.site_devices.empty()) groups = options.devices;
  for (const auto& site : options.site_devices) groups.insert(groups.end(), site.begin(), site.end());
  command.plain_device(groups, options.speed, options.memory);
  check_network(command, options);

  std::vector<std::string> notes = {
      fmt::format(
          "{}ites, each pair joined by an equal link per direction. Made up: the prop made_by holds the command "
          "that makes",
          options.site_devices.empty() ? "Equal s" : "S"),
      "this file again, and every number that no source below gives is that command's."};
  append(notes, notes_on(groups));
  append(notes, notes_on_window(options.flows, options.window.value_or(measured_window)));

  Sites sites = joined_sites(devices.size(), options);
  for (std::size_t i = 0; i < devices.size(); ++i) sites.sites[i].devices = devices[i];
  return platform_of_sites(command.text(), notes, sites, plain_device(options));
}

std::string generate_nodes(const NodesOptions& options)
{
  GeneratorCommand command("isobar platform generate nodes");
  command.site_nodes("--nodes", options.nodes);
  std::vector<DeviceGroup> groups;
  for (const auto& site : options.nodes) {
    std::size_t nodes = 0;
    for (const auto& group : site) {
      groups.push_back(group.devices);
      nodes += group.count;
    }
    if (nodes > most_nodes) {
      throw InputError("--nodes",
                       fmt::format("{} has {} nodes; a site has at most {}", text_of(site), nodes, most_nodes));
    }
  }
  command.plain_device(groups, options.speed, options.memory);
  if (options.inside_bandwidth) command.positive("--inside-bandwidth", *options.inside_bandwidth);
  command.not_negative("--inside-rtt", options.inside_rtt);
  check_network(command, options);
  if (options.lan_rtt < options.inside_rtt) {
    throw InputError("--lan-rtt", fmt::format("{} is less than the {} within a node; write at least that",
                                              option_of(options.lan_rtt), option_of(options.inside_rtt)));
  }

  std::vector<std::string> notes = {
      "Sites of nodes, whose devices share the node's link to the site. Made up: the prop made_by holds the command "
      "that",
      "makes this file again, and every number that no source below gives is that command's."};
  append(notes, notes_on(groups));
  append(notes, notes_on_window(options.flows, options.window.value_or(measured_window)));

  Sites sites = joined_sites(options.nodes.size(), options);
  for (std::size_t i = 0; i < options.nodes.size(); ++i) {
    Site& site = sites.sites[i];
    for (const auto& group : options.nodes[i]) site.nodes.insert(site.nodes.end(), group.count, group.devices);
    site.inside_bandwidth = options.inside_bandwidth;
    site.inside_rtt = options.inside_rtt;
  }
  return platform_of_sites(command.text(), notes, sites, plain_device(options));
}

}  // namespace isobar::sim

#include "cli/generators.hpp"

#include "sim/generate/platform_generator.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

namespace isobar::cli {

namespace {

using MakeXml = std::function<std::string()>;

constexpr auto sky_example = R"(Example:
  isobar platform generate sky --nodes 64 -o sky64.xml
)";

constexpr auto star_example = R"(Example:
  isobar platform generate star --devices 8xA10+8xT4 \
    --bandwidth "10 Gbit/s" -o mixed.xml
)";

constexpr auto sites_example = R"(Example:
  isobar platform generate sites --sites 2 --devices 2xA100-SXM4-40GB+2xT4 \
    --wan-bandwidth "5 Gbit/s" --wan-rtt "30 ms" -o wan.xml
)";

constexpr auto nodes_example = R"(Example:
  isobar platform generate nodes --nodes 8xA100-SXM4-40GB,4*4xT4 \
    --wan-bandwidth "5 Gbit/s" --wan-rtt "30 ms" -o mixed.xml
)";

/// Adds the options of devices without a type.
template <typename Options>
void add_plain_device_options(CLI::App& command, Options& options)
{
  add_quantity(command, "--speed", options.speed, speed_from_text,
               "float32 rate of devices without a type (default: 10 TFLOP/s)");
  add_quantity(command, "--memory", options.memory, bytes_from_text,
               "memory of devices without a type (default: 16 GB)");
}

/// Adds --devices and the options of devices without a type.
template <typename Options>
void add_device_options(CLI::App& command, Options& options, const std::string& devices)
{
  add_quantity(command, "--devices", options.devices, sim::device_groups_from_text, devices);
  add_plain_device_options(command, options);
}

void add_wide_area_options(CLI::App& command, sim::WideAreaOptions& options)
{
  add_quantity(command, "--wan-bandwidth", options.wan_bandwidth, bandwidth_from_text,
               "bandwidth of each directed pair of sites (default: 1 Gbit/s)");
  add_quantity(command, "--wan-rtt", options.wan_rtt, seconds_from_text,
               "round-trip time between devices of two sites (default: 100 ms)");
  add_quantity(command, "--egress", options.egress, bandwidth_from_text,
               "cap of all that leaves a site together (default: none)");
  add_quantity(command, "--ingress", options.ingress, bandwidth_from_text,
               "cap of all that enters a site together (default: none)");
  add_window_options(command, options);
}

/// Reads "8xA10,4xT4+2xA10": the groups of two sites.
template <typename Group>
std::vector<std::vector<Group>> sites_from_text(std::string_view text,
                                                std::vector<Group> (*groups_from_text)(std::string_view))
{
  std::vector<std::vector<Group>> sites;
  while (true) {
    const auto comma = text.find(',');
    sites.push_back(groups_from_text(text.substr(0, comma)));
    if (comma == std::string_view::npos) return sites;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::vector<sim::DeviceGroup>> site_devices_from_text(std::string_view text)
{
  return sites_from_text<sim::DeviceGroup>(text, sim::device_groups_from_text);
}

std::vector<std::vector<sim::NodeGroup>> site_nodes_from_text(std::string_view text)
{
  return sites_from_text<sim::NodeGroup>(text, sim::node_groups_from_text);
}

MakeXml add_sky_options(CLI::App& command)
{
  auto options = std::make_shared<sim::SkyOptions>();
  auto& sky = *options;
  command.option_defaults()->group("Devices");
  add_count(command, "--nodes", sky.nodes, "number of nodes, the data server included (default: 64)");
  command
      .add_option("--speed-spread", sky.speed_spread,
                  "how many times slower than the fastest possible worker the slowest may be, at least 1")
      ->capture_default_str();
  add_quantity(command, "--memory", sky.memory, bytes_from_text,
               "memory of a worker before it is divided (default: 15780 MiB)");
  command.option_defaults()->group("Network");
  add_quantity(command, "--bandwidth", sky.bandwidth, bandwidth_from_text,
               "bandwidth of the server's link, and of a worker's before it is divided (default: 10 Gbit/s)");
  add_quantity(command, "--latency", sky.latency, seconds_from_text, "latency of each node's link (default: 1 ms)");
  return [options] { return sim::generate_sky(*options); };
}

MakeXml add_star_options(CLI::App& command)
{
  auto options = std::make_shared<sim::StarOptions>();
  auto& star = *options;
  command.option_defaults()->group("Devices");
  add_device_options(command, star, "a number of devices, or types such as 8xA10+8xT4 (default: 1024)");
  command
      .add_option("--speed-spread", star.speed_spread, "how many times slower the slowest device may be, at least 1")
      ->capture_default_str();
  command
      .add_option("--memory-spread", star.memory_spread,
                  "how many times less memory the smallest device may have, at least 1")
      ->capture_default_str();
  add_count(command, "--seed", star.seed, "seed of the random numbers of the spreads (default: 0)");
  command.option_defaults()->group("Network");
  add_quantity(command, "--bandwidth", star.bandwidth, bandwidth_from_text,
               "bandwidth of each device's link, per direction (default: 10 Gbit/s)");
  add_quantity(command, "--latency", star.latency, seconds_from_text, "latency of each device's link (default: 50 us)");
  command
      .add_option("--bandwidth-spread", star.bandwidth_spread,
                  "how many times narrower the narrowest link may be, at least 1")
      ->capture_default_str();
  return [options] { return sim::generate_star(*options); };
}

MakeXml add_sites_options(CLI::App& command)
{
  auto options = std::make_shared<sim::SitesOptions>();
  auto& sites = *options;
  command.option_defaults()->group("Devices");
  auto* count = add_count(command, "--sites", sites.sites, "number of sites (default: 2)");
  add_device_options(command, sites, "devices of each site: a number, or types such as 8xA10+8xT4 (default: 8)");
  add_quantity(command, "--site-devices", sites.site_devices, site_devices_from_text,
               "devices of each site in turn, such as 8xA10,4xT4+2xA10, instead of --sites and --devices");
  command.get_option("--site-devices")->excludes(count)->excludes(command.get_option("--devices"));
  command.option_defaults()->group("Network");
  add_quantity(command, "--lan-bandwidth", sites.lan_bandwidth, bandwidth_from_text,
               "bandwidth of each device's link, per direction (default: 10 Gbit/s)");
  add_quantity(command, "--lan-rtt", sites.lan_rtt, seconds_from_text,
               "round-trip time between two devices of a site (default: 0.2 ms)");
  add_wide_area_options(command, sites);
  return [options] { return sim::generate_sites(*options); };
}

MakeXml add_nodes_options(CLI::App& command)
{
  auto options = std::make_shared<sim::NodesOptions>();
  auto& nodes = *options;
  command.option_defaults()->group("Devices");
  add_quantity(command, "--nodes", nodes.nodes, site_nodes_from_text,
               "nodes of each site in turn, such as 2*8xA10+4xT4,4xT4 for 2 nodes of 8 A10 and one of 4 T4, and a site "
               "of one node (default: 8, a node of 8 devices without a type)");
  add_plain_device_options(command, nodes);
  command.option_defaults()->group("Network");
  add_quantity(command, "--inside-bandwidth", nodes.inside_bandwidth, bandwidth_from_text,
               "bandwidth of each device's link in its node, per direction (default: that of its type; 32 GB/s without "
               "a type)");
  add_quantity(command, "--inside-rtt", nodes.inside_rtt, seconds_from_text,
               "round-trip time between two devices of a node (default: 20 us)");
  add_quantity(command, "--lan-bandwidth", nodes.lan_bandwidth, bandwidth_from_text,
               "bandwidth of each node's link to its site, per direction (default: 100 Gbit/s)");
  add_quantity(command, "--lan-rtt", nodes.lan_rtt, seconds_from_text,
               "round-trip time between devices of two nodes of a site (default: 100 us)");
  add_wide_area_options(command, nodes);
  return [options] { return sim::generate_nodes(*options); };
}

const Generator& generator_named(const std::string& name)
{
  const auto& all = generators();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& generator) { return generator.name == name; });
  ensure(found != all.end(), "an unknown generator");
  return *found;
}

/// "--nodes" as "nodes".
std::string without_dashes(const std::string& option)
{
  return option.substr(std::min(option.find_first_not_of('-'), option.size()));
}

/// A message of CLI11 or of a generator about "--nodes", as one about "nodes".
InputError fault_of_option(const std::string& fault)
{
  return InputError(without_dashes(fault));
}

}  // namespace

const std::vector<Generator>& generators()
{
  static const std::vector<Generator> all = {
      {"sky", "the emulated cluster of Sky Computing: a data server and N-1 workers", sky_example, add_sky_options},
      {"star", "devices, each on its own link to one switch", star_example, add_star_options},
      {"sites",
       "sites, each pair joined by equal wide-area links, one per direction; each device has a network card of its "
       "own, "
       "and no NVLink: for nodes with NVLink, see nodes or machine",
       sites_example, add_sites_options},
      {"nodes",
       "sites of nodes, whose devices are joined by NVLink or PCI Express and share a node's link to its site; machine "
       "adds what collectives attain",
       nodes_example, add_nodes_options},
  };
  return all;
}

std::vector<std::string> generator_names()
{
  std::vector<std::string> names;
  for (const auto& generator : generators()) names.emplace_back(generator.name);
  return names;
}

std::string generate_platform(const std::string& generator, const std::map<std::string, std::string>& options)
{
  CLI::App command;
  const MakeXml make = generator_named(generator).add_options(command);
  std::vector<std::string> arguments;
  for (const auto& [name, value] : options) arguments.push_back(fmt::format("--{}={}", name, value));
  try {
    command.parse(std::move(arguments));
    return make();
  } catch (const CLI::ConversionError& fault) {
    const std::string what = fault.what();  // "Could not convert: --speed-spread = fast"
    const auto option = what.find("--");
    throw fault_of_option(option == std::string::npos ? what : what.substr(option) + " is not a number");
  } catch (const CLI::ParseError& fault) {
    throw fault_of_option(fault.what());
  } catch (const InputError& fault) {
    throw fault_of_option(fault.what());
  }
}

std::vector<std::string> options_of_generator(const std::string& generator)
{
  CLI::App command;
  generator_named(generator).add_options(command);
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    if (option != command.get_help_ptr()) names.push_back(without_dashes(option->get_name()));
  }
  return names;
}

}  // namespace isobar::cli

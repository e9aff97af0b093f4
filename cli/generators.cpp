#include "cli/generators.hpp"

#include "sim/generate/platform_generator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace isobar::cli {

namespace {

using MakeXml = std::function<std::string()>;

/// Options of devices that have no type.
template <typename Options>
void add_device_options(CLI::App& command, Options& options)
{
  add_quantity(command, "--devices", options.devices, sim::device_groups_from_text,
               "a count, or types such as 8xA10+8xT4");
  add_quantity(command, "--speed", options.speed, speed_from_text, "float32 rate of devices without a type");
  add_quantity(command, "--memory", options.memory, bytes_from_text, "memory of devices without a type");
}

/// "8xA10,4xT4+2xA10": a site each.
std::vector<std::vector<sim::DeviceGroup>> site_devices_from_text(std::string_view text)
{
  std::vector<std::vector<sim::DeviceGroup>> sites;
  while (true) {
    const auto comma = text.find(',');
    sites.push_back(sim::device_groups_from_text(text.substr(0, comma)));
    if (comma == std::string_view::npos) return sites;
    text.remove_prefix(comma + 1);
  }
}

MakeXml add_sky_options(CLI::App& command)
{
  auto options = std::make_shared<sim::SkyOptions>();
  auto& sky = *options;
  add_count(command, "--nodes", sky.nodes, "nodes, the server included (default: 64)");
  command.add_option("--speed-spread", sky.speed_spread, "the slowest worker is at most so many times slower")
      ->capture_default_str();
  add_quantity(command, "--memory", sky.memory, bytes_from_text, "memory of a worker before it is divided");
  add_quantity(command, "--bandwidth", sky.bandwidth, bandwidth_from_text, "bandwidth of a link before it is divided");
  add_quantity(command, "--latency", sky.latency, seconds_from_text, "latency of each node's link");
  return [options] { return sim::generate_sky(*options); };
}

MakeXml add_star_options(CLI::App& command)
{
  auto options = std::make_shared<sim::StarOptions>();
  auto& star = *options;
  add_device_options(command, star);
  add_quantity(command, "--bandwidth", star.bandwidth, bandwidth_from_text, "of each device's link, per direction");
  add_quantity(command, "--latency", star.latency, seconds_from_text, "of each device's link");
  command.add_option("--speed-spread", star.speed_spread, "slowest device: so many times slower")
      ->capture_default_str();
  command.add_option("--memory-spread", star.memory_spread, "smallest device: so many times less")
      ->capture_default_str();
  command.add_option("--bandwidth-spread", star.bandwidth_spread, "narrowest link: so many times less")
      ->capture_default_str();
  add_count(command, "--seed", star.seed, "start of the random numbers of the spreads (default: 0)");
  return [options] { return sim::generate_star(*options); };
}

MakeXml add_sites_options(CLI::App& command)
{
  auto options = std::make_shared<sim::SitesOptions>();
  auto& sites = *options;
  auto* count = add_count(command, "--sites", sites.sites, "how many (default: 2)");
  add_device_options(command, sites);
  add_quantity(command, "--site-devices", sites.site_devices, site_devices_from_text,
               "instead of --sites and --devices: those of each site in turn, such as 8xA10,4xT4+2xA10");
  command.get_option("--site-devices")->excludes(count)->excludes(command.get_option("--devices"));
  add_quantity(command, "--lan-bandwidth", sites.lan_bandwidth, bandwidth_from_text, "of each device's link");
  add_quantity(command, "--lan-rtt", sites.lan_rtt, seconds_from_text, "round trip between two devices of a site");
  add_quantity(command, "--wan-bandwidth", sites.wan_bandwidth, bandwidth_from_text, "of each directed pair of sites");
  add_quantity(command, "--wan-rtt", sites.wan_rtt, seconds_from_text, "round trip between devices of two sites");
  add_quantity(command, "--egress", sites.egress, bandwidth_from_text, "cap of all that leaves a site");
  add_quantity(command, "--ingress", sites.ingress, bandwidth_from_text, "cap of all that enters a site");
  add_window_options(command, sites);
  return [options] { return sim::generate_sites(*options); };
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

/// What CLI11, or a generator, says of "--nodes", as what is wrong with "nodes".
InputError fault_of_option(const std::string& fault)
{
  return InputError(without_dashes(fault));
}

}  // namespace

const std::vector<Generator>& generators()
{
  static const std::vector<Generator> all = {
      {"sky", "the emulated cluster of Sky Computing: a data server and N-1 workers", add_sky_options},
      {"star", "devices on a link of their own to one switch", add_star_options},
      {"sites", "sites, each two joined by an equal wide-area link per direction", add_sites_options},
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

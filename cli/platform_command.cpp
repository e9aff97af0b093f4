#include "cli/command.hpp"
#include "core/files.hpp"
#include "core/quantity_text.hpp"
#include "results/table.hpp"
#include "sim/platform_generator.hpp"

#include <fmt/format.h>

namespace isobar::cli {

namespace {

constexpr auto footer = R"(Examples:
  isobar platform show platforms/sky64.xml
  isobar platform generate sky --nodes 64 -o sky64.xml
  isobar platform generate star --devices 8xA10+8xT4 --bandwidth "10 Gbit/s" -o mixed.xml
  isobar platform import matrix.csv --sites sites.csv -o wan.xml
)";

/// An option whose text is a quantity; it is read after parsing, so that a fault names the option and exits with 2.
template <typename Value, typename FromText>
void add_quantity(CLI::App& command, const std::string& name, Value& value, FromText from_text, const std::string& what)
{
  command
      .add_option_function<std::string>(
          name,
          [&value, name, from_text](const std::string& text) {
            try {
              value = from_text(text);
            } catch (const std::invalid_argument& fault) {
              throw InputError(name, fault.what());
            }
          },
          what)
      ->type_name("TEXT");
}

/// Writes to -o, or prints.
struct Output {
  std::string file;

  void add_to(CLI::App& command)
  {
    add_file(command, "-o,--output", file, "platform file to write; default: print it");
  }
  ExitCode write(const std::string& xml) const
  {
    if (file.empty()) {
      print(xml);
    } else {
      write_file_atomically(file, xml);
    }
    return ExitCode::Done;
  }
};

struct SkyCommand {
  sim::SkyOptions sky;
  Output output;
};

void add_sky(CLI::App& parent, Action& action)
{
  auto* command = parent.add_subcommand("sky", "the emulated cluster of Sky Computing: a data server and N-1 workers");
  auto options = std::make_shared<SkyCommand>();
  auto& sky = options->sky;
  add_count(*command, "--nodes", sky.nodes, "nodes, the server included (default: 64)");
  command->add_option("--speed-spread", sky.speed_spread, "the slowest worker is at most so many times slower")
      ->capture_default_str();
  add_quantity(*command, "--memory", sky.memory, bytes_from_text, "memory of a worker before it is divided");
  add_quantity(*command, "--bandwidth", sky.bandwidth, bandwidth_from_text, "bandwidth of a link before it is divided");
  add_quantity(*command, "--latency", sky.latency, seconds_from_text, "latency of each node's link");
  options->output.add_to(*command);
  command->callback(
      [options, &action] { action = [options] { return options->output.write(sim::generate_sky(options->sky)); }; });
}

/// Options of devices that have no type.
template <typename Options>
void add_device_options(CLI::App& command, Options& options)
{
  add_quantity(command, "--devices", options.devices, sim::device_groups_from_text,
               "a count, or types such as 8xA10+8xT4");
  add_quantity(command, "--speed", options.speed, speed_from_text, "float32 rate of devices without a type");
  add_quantity(command, "--memory", options.memory, bytes_from_text, "memory of devices without a type");
}

struct StarCommand {
  sim::StarOptions star;
  Output output;
};

void add_star(CLI::App& parent, Action& action)
{
  auto* command = parent.add_subcommand("star", "devices on a link of their own to one switch");
  auto options = std::make_shared<StarCommand>();
  auto& star = options->star;
  add_device_options(*command, star);
  add_quantity(*command, "--bandwidth", star.bandwidth, bandwidth_from_text, "of each device's link, per direction");
  add_quantity(*command, "--latency", star.latency, seconds_from_text, "of each device's link");
  command->add_option("--speed-spread", star.speed_spread, "slowest device: so many times slower")
      ->capture_default_str();
  command->add_option("--memory-spread", star.memory_spread, "smallest device: so many times less")
      ->capture_default_str();
  command->add_option("--bandwidth-spread", star.bandwidth_spread, "narrowest link: so many times less")
      ->capture_default_str();
  add_count(*command, "--seed", star.seed, "start of the random numbers of the spreads (default: 0)");
  options->output.add_to(*command);
  command->callback(
      [options, &action] { action = [options] { return options->output.write(sim::generate_star(options->star)); }; });
}

/// --flows and --window, as sites and import take them.
template <typename Options>
void add_window_options(CLI::App& command, Options& options)
{
  add_count(command, "--flows", options.flows, "TCP flows of a transfer between sites; absent: no window law");
  add_quantity(command, "--window", options.window, bytes_from_text, "bytes in flight per flow (default: 2.65 MB)");
}

struct SitesCommand {
  sim::SitesOptions sites;
  Output output;
};

void add_sites(CLI::App& parent, Action& action)
{
  auto* command =
      parent.add_subcommand("sites", "equal sites, each two joined by an equal wide-area link per direction");
  auto options = std::make_shared<SitesCommand>();
  auto& sites = options->sites;
  add_count(*command, "--sites", sites.sites, "how many (default: 2)");
  add_device_options(*command, sites);
  add_quantity(*command, "--lan-bandwidth", sites.lan_bandwidth, bandwidth_from_text, "of each device's link");
  add_quantity(*command, "--lan-rtt", sites.lan_rtt, seconds_from_text, "round trip between two devices of a site");
  add_quantity(*command, "--wan-bandwidth", sites.wan_bandwidth, bandwidth_from_text, "of each directed pair of sites");
  add_quantity(*command, "--wan-rtt", sites.wan_rtt, seconds_from_text, "round trip between devices of two sites");
  add_quantity(*command, "--egress", sites.egress, bandwidth_from_text, "cap of all that leaves a site");
  add_quantity(*command, "--ingress", sites.ingress, bandwidth_from_text, "cap of all that enters a site");
  add_window_options(*command, sites);
  options->output.add_to(*command);
  command->callback([options, &action] {
    action = [options] { return options->output.write(sim::generate_sites(options->sites)); };
  });
}

struct ImportCommand {
  sim::ImportOptions import;
  Output output;
};

void add_import(CLI::App& parent, Action& action)
{
  auto* command = parent.add_subcommand("import", "sites joined as measured (docs/platforms.md: the CSV columns)");
  auto options = std::make_shared<ImportCommand>();
  auto& import = options->import;
  add_file(*command, "MATRIX", import.matrix, "CSV: from, to, bandwidth_gbit_s, rtt_ms")->required();
  add_file(*command, "--sites", import.sites, "CSV: site, devices, lan_bandwidth_gbit_s, lan_rtt_ms, …")->required();
  command->add_flag("--undirected", import.undirected, "each pair stands once, for both directions");
  add_window_options(*command, import);
  options->output.add_to(*command);
  command->callback([options, &action] {
    action = [options] { return options->output.write(sim::import_matrix(options->import)); };
  });
}

struct ShowCommand {
  std::string platform;
  std::string devices;
  bool json = false;
};

std::string table_of_devices(const Cluster& cluster)
{
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const Device& device = cluster.devices[i];
    const std::size_t next = i + 1 < cluster.devices.size() ? i + 1 : 0;
    const bool alone = next == i;
    const Path path = alone ? Path{} : cluster.path(i, next);
    rows.push_back({device.name, device.type.empty() ? "–" : device.type, device.site.empty() ? "–" : device.site,
                    text_of(device.speed), text_of(device.memory),
                    device.price_usd_per_hour ? fmt::format("{:.2f}", *device.price_usd_per_hour) : "–",
                    alone ? "–" : text_of(path.bandwidth), alone ? "–" : text_of(path.latency)});
  }
  const std::string server = cluster.data_server ? fmt::format("data server: {}\n", *cluster.data_server) : "";
  return fmt::format(
      "{}: {} devices\n{}\n{}", cluster.name, cluster.devices.size(), server,
      results::table_of({"device", "type", "site", "float32", "memory", "USD/h", "to the next", "latency"}, rows, 3));
}

void add_show(CLI::App& parent, Action& action)
{
  auto* command = parent.add_subcommand("show", "the devices of a platform file and what lies between them");
  auto options = std::make_shared<ShowCommand>();
  add_file(*command, "PLATFORM", options->platform, "SimGrid platform file (XML)")->required();
  add_file(*command, "--devices", options->devices, "props for the platform's hosts (YAML)");
  command->add_flag("--json", options->json, "print the cluster as JSON, every pair of devices included");
  command->callback([options, &action] {
    action = [options] {
      const auto platform = load_platform(options->platform, options->devices);
      print(options->json ? cluster_to_json(platform.cluster()) + "\n" : table_of_devices(platform.cluster()));
      return ExitCode::Done;
    };
  });
}

}  // namespace

void add_platform_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("platform", "show, generate or import platform files");
  command->require_subcommand(1);
  command->footer(footer);
  add_show(*command, action);
  auto* generate = command->add_subcommand("generate", "make a platform file from a few options");
  generate->require_subcommand(1);
  add_sky(*generate, action);
  add_star(*generate, action);
  add_sites(*generate, action);
  add_import(*command, action);
}

}  // namespace isobar::cli

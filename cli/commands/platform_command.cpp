#include "cli/commands.hpp"
#include "cli/generators.hpp"
#include "cli/output_file.hpp"
#include "cli/platform_files.hpp"
#include "cli/table_options.hpp"
#include "core/base/command_options.hpp"
#include "core/compute/calibration.hpp"
#include "core/text/quantity_text.hpp"
#include "sim/generate/machine_file.hpp"
#include "sim/generate/platform_generator.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <map>
#include <set>

namespace isobar::cli {

namespace {

constexpr auto platform_show_footer = R"(Example:
  isobar platform show platforms/sky64.xml
)";

constexpr auto generate_footer = R"(isobar platform generate GENERATOR --help describes its options.

Example:
  isobar platform generate sky --nodes 64 -o sky64.xml
)";

constexpr auto machine_footer = R"(docs/formats/machine.md describes the file.

Example:
  isobar platform generate machine examples/machine.yaml --set nodes=4 \
    -o machine.xml
)";

constexpr auto platform_import_footer = R"(docs/platforms.md describes the columns of both files.

Example:
  isobar platform import matrix.csv --sites sites.csv -o wan.xml
)";

/// Writes to -o, by default to standard output.
struct Output {
  std::string file = std::string(standard_output);

  void add_to(CLI::App& command)
  {
    command.option_defaults()->group("Output");
    add_output(command, "-o,--output", file, "platform file to write (XML; default: standard output)");
  }
  ExitCode write(const std::string& xml) const
  {
    OutputFile(file).write(xml);
    return ExitCode::Done;
  }
};

void add_generator(CLI::App& parent, Action& action, const Generator& generator)
{
  auto* command = parent.add_subcommand(std::string(generator.name), std::string(generator.what));
  auto output = std::make_shared<Output>();
  const auto make = generator.add_options(*command);
  output->add_to(*command);
  command->footer(std::string(generator.example));
  command->callback([=, &action] { action = [=] { return output->write(make()); }; });
}

struct MachineCommand {
  std::string file;
  std::map<std::string, std::string> settings;
  std::string system;
  Output output;
};

void add_machine(CLI::App& parent, Action& action)
{
  auto* command = parent.add_subcommand("machine", "a real machine: nodes of GPUs, as a machine file describes it");
  auto options = std::make_shared<MachineCommand>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "FILE", options->file, "machine file (YAML)")->required();
  add_settings(*command, options->settings)
      ->description("replace a count of the file: nodes, gpus_per_node or count_DEVICE");
  add_file(*command, "--system", options->system,
           "calibration whose factors the links of its device type get (YAML; isobar calibrate writes it)");
  options->output.add_to(*command);
  command->footer(machine_footer);
  command->callback([options, &action] {
    action = [options] {
      refuse_overwriting({options->file, options->system}, {options->output.file});
      const sim::MachineOverrides overrides(options->settings.begin(), options->settings.end());
      sim::MachineFile machine = sim::read_machine(options->file, overrides, "--set");
      if (!options->system.empty()) sim::calibrate(machine, compute::read_calibration(options->system));
      return options->output.write(sim::machine_to_xml(machine));
    };
  });
}

struct PlatformImport {
  sim::ImportOptions import;
  Output output;
};

void add_platform_import(CLI::App& parent, Action& action)
{
  auto* command = parent.add_subcommand("import", "make a platform file from measured links between sites");
  auto options = std::make_shared<PlatformImport>();
  auto& import = options->import;
  command->option_defaults()->group("Inputs");
  add_file(*command, "MATRIX", import.matrix,
           "measured links (CSV; columns from, to, bandwidth_gbit_s, rtt_ms; one row for each directed pair)")
      ->required();
  add_file(*command, "--sites", import.sites,
           "sites to use (CSV; columns site, devices, lan_bandwidth_gbit_s, lan_rtt_ms, …)")
      ->required();
  command->add_flag("--undirected", import.undirected, "MATRIX lists each pair once, for both directions");
  command->option_defaults()->group("Network");
  add_window_options(*command, import);
  options->output.add_to(*command);
  command->footer(platform_import_footer);
  command->callback([options, &action] {
    action = [options] {
      refuse_overwriting({options->import.matrix, options->import.sites}, {options->output.file});
      return options->output.write(sim::import_matrix(options->import));
    };
  });
}

struct ShowCommand {
  std::string platform;
  std::string devices;
  TableOptions table;
  bool json = false;
};

/// The machines of a cluster: their memory, their rates of updates and their disk.
std::string table_of_machines(const Cluster& cluster, results::TableWidth width)
{
  const std::vector<std::string> header = {"machine", "memory", "updates", "while computing",
                                           "disk",    "reads",  "writes"};
  std::vector<std::vector<std::string>> rows;
  for (const auto& machine : cluster.machines) {
    std::vector<std::string> row = {machine.name, text_of(machine.memory), text_of(machine.update_speed),
                                    text_of(machine.busy_update_speed)};
    if (const auto& disk = machine.disk) {
      row.insert(row.end(), {text_of(disk->capacity), text_of(disk->read), text_of(disk->write)});
    } else {
      row.insert(row.end(), 3, "–");
    }
    rows.push_back(std::move(row));
  }
  return results::table_of(header, std::move(rows), 1, {6, 5}, width);
}

std::string table_of_devices(const Cluster& cluster, results::TableWidth width)
{
  std::set<DType> dtypes;
  for (const auto& device : cluster.devices) {
    for (const auto& [dtype, speed] : device.speed_in) dtypes.insert(dtype);
  }
  std::vector<std::string> header = {"device", "type", "site", "float32"};
  for (const auto dtype : dtypes) header.emplace_back(name_of(dtype));
  header.insert(header.end(), {"memory", "USD/h", "to the next", "latency"});
  const bool has_machines = !cluster.machines.empty();
  if (has_machines) header.insert(header.end(), {"machine", "to it", "from it"});
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const Device& device = cluster.devices[i];
    const std::size_t next = i + 1 < cluster.devices.size() ? i + 1 : 0;
    const bool alone = next == i;
    const Path path = alone ? Path{} : cluster.path(i, next);
    std::vector<std::string> row = {device.name, device.type.empty() ? "–" : device.type,
                                    device.site.empty() ? "–" : device.site, text_of(device.speed)};
    for (const auto dtype : dtypes) {
      const auto speed = device.speed_in.find(dtype);
      row.push_back(speed == device.speed_in.end() ? "–" : text_of(speed->second));
    }
    row.insert(row.end(), {text_of(device.memory),
                           device.price_usd_per_hour ? fmt::format("{:.2f}", *device.price_usd_per_hour) : "–",
                           alone ? "–" : text_of(path.bandwidth), alone ? "–" : text_of(path.latency)});
    if (const auto& link = device.machine) {
      row.insert(row.end(),
                 {cluster.machines[link->machine].name, text_of(link->out.bandwidth), text_of(link->in.bandwidth)});
    } else if (has_machines) {
      row.insert(row.end(), 3, "–");
    }
    rows.push_back(std::move(row));
  }
  // The rates of other dtypes, the last first; then price, latency and bandwidth to the next.
  std::vector<std::size_t> least_important_first;
  for (std::size_t i = dtypes.size(); i > 0; --i) least_important_first.push_back(3 + i);
  const std::size_t memory = 4 + dtypes.size();
  least_important_first.insert(least_important_first.end(), {memory + 1, memory + 3, memory + 2});
  if (has_machines) least_important_first.insert(least_important_first.end(), {memory + 5, memory + 6});
  const std::string server =
      cluster.data_server ? fmt::format("data server: {}\n", on_one_line(*cluster.data_server)) : "";
  return fmt::format("{}: {}{}\n{}\n{}{}", on_one_line(cluster.name), counted(cluster.devices.size(), "device"),
                     has_machines ? " in " + counted(cluster.machines.size(), "machine") : "", server,
                     results::table_of(header, std::move(rows), 3, least_important_first, width),
                     has_machines ? "\n" + table_of_machines(cluster, width) : "");
}

void add_platform_show(CLI::App& parent, Action& action)
{
  auto* command =
      parent.add_subcommand("show", "show the devices and machines of a platform file and the paths between them");
  auto options = std::make_shared<ShowCommand>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "PLATFORM", options->platform, "SimGrid platform file (XML)")->required();
  add_file(*command, "--devices", options->devices,
           "props for the platform's hosts (YAML; default: NAME.devices.yaml next to NAME.xml, if it exists)");
  command->option_defaults()->group("Output");
  options->table.add_to(*command);
  command->add_flag("--json", options->json, "print the cluster as JSON, with every pair of devices");
  command->footer(platform_show_footer);
  command->callback([options, &action] {
    action = [options] {
      const auto platform = load_platform(options->platform, options->devices);
      print_notes(platform);
      print(options->json ? cluster_to_json(platform.cluster()) + "\n"
                          : table_of_devices(platform.cluster(), options->table.width()));
      return ExitCode::Done;
    };
  });
}

}  // namespace

void add_platform_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("platform", "show, generate or import platform files");
  command->require_subcommand(1);
  command->footer(platform_show_footer);
  add_platform_show(*command, action);
  auto* generate = command->add_subcommand("generate", "make a platform file from a few options");
  generate->require_subcommand(1);
  generate->footer(generate_footer);
  for (const auto& generator : generators()) add_generator(*generate, action, generator);
  add_machine(*generate, action);
  add_platform_import(*command, action);
}

}  // namespace isobar::cli

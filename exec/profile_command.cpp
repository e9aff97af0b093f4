#include "core/files.hpp"
#include "core/quantity_text.hpp"
#include "exec/commands.hpp"
#include "exec/device.hpp"
#include "exec/link_probe.hpp"
#include "exec/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(Example:
  isobar profile workloads/bert10.yaml --slowdowns 1,2,4 -o live
  isobar plan live.xml workloads/bert10.yaml --profile live.profile.json --allocator exact -o plan.json
)";

struct CommandOptions {
  std::string workload;
  std::string output;
  std::vector<double> slowdowns = {1};
  std::size_t flows = 1;
  bool json = false;
  std::string device = "cpu";
  ProfileOptions profile;
};

/// A platform of devices like this one, each so many times slower: what --emulate makes of ranks on this machine.
std::string platform_of(const DeviceProfile& profile, const CommandOptions& options, const LinkMeasurement& link)
{
  std::string hosts;
  std::string links;
  std::string routes;
  const std::size_t count = options.slowdowns.size();
  for (std::size_t i = 0; i < count; ++i) {
    const bool as_measured = options.slowdowns[i] == 1;
    hosts += fmt::format(
        "    <host id=\"rank-{}\" speed=\"{:.17g}f\">\n      <prop id=\"memory\" value=\"{:.0f} B\"/>\n{}    </host>\n",
        i, profile.speed.value / options.slowdowns[i], profile.memory.value / static_cast<double>(count),
        as_measured ? fmt::format("      <prop id=\"device\" value=\"{}\"/>\n", profile.device) : "");
    for (std::size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      links += fmt::format("    <link id=\"{0}-{1}\" bandwidth=\"{2:.17g}Bps\" latency=\"{3:.17g}s\"/>\n", i, j,
                           link.bandwidth.value, link.latency.value);
      routes += fmt::format(
          "    <route src=\"rank-{0}\" dst=\"rank-{1}\" symmetrical=\"NO\"><link_ctn id=\"{0}-{1}\"/></route>\n", i, j);
    }
  }
  return fmt::format(
      "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<!-- Measured by isobar profile: {} at {} -->\n"
      "<platform version=\"4.1\">\n  <zone id=\"world\" routing=\"Full\">\n{}{}{}  </zone>\n</platform>\n",
      profile.device, text_of(profile.speed), hosts, links, routes);
}

/// Kinds of layers, each once, by what they take.
std::string summary_of(const DeviceProfile& profile, const LinkMeasurement& link)
{
  std::string text =
      fmt::format("{}: {} over {} layers; loopback {} and {}\n\n{:<20}  {:>10}  {:>10}  {:>10}  {:>7}  {:>11}\n",
                  profile.device, text_of(profile.speed), profile.layers.size(), text_of(link.latency),
                  text_of(link.bandwidth), "layer", "forward", "backward", "update", "spread", "activations");
  if (profile.host_to_device && profile.device_to_host) {
    text = fmt::format("copies to the device {}, from it {}; ", text_of(*profile.host_to_device),
                       text_of(*profile.device_to_host)) +
           text;
  }
  std::vector<const LayerProfile*> kinds;
  for (const auto& layer : profile.layers) {
    const auto is_same = [&](const LayerProfile* other) {
      return other->forward == layer.forward && other->backward == layer.backward && other->update == layer.update;
    };
    if (std::any_of(kinds.begin(), kinds.end(), is_same)) continue;
    kinds.push_back(&layer);
    text += fmt::format("{:<20}  {:>10}  {:>10}  {:>10}  {:>5.1f} %  {:>11}\n", layer.name, text_of(layer.forward),
                        text_of(layer.backward), text_of(layer.update), 100 * layer.spread_fraction,
                        text_of(layer.activations));
  }
  return text;
}

ExitCode profile(const CommandOptions& options)
{
  for (const double slowdown : options.slowdowns) {
    if (!(slowdown >= 1 && slowdown <= 1e6)) {
      throw InputError("--slowdowns", fmt::format("{} is not in 1 to 1e6", slowdown));
    }
  }
  if (options.profile.repetitions < 1) throw InputError("--repetitions", "0 passes measure nothing");
  const Workload workload = read_workload(options.workload);
  const DeviceProfile measured = measure_profile(workload, options.profile);
  const LinkMeasurement link = probe_loopback(options.flows);
  const std::string json = profile_to_json(measured);
  write_file_atomically(options.output + ".profile.json", json);
  write_file_atomically(options.output + ".xml", platform_of(measured, options, link));
  fmt::print("{}", options.json ? json : summary_of(measured, link));
  return ExitCode::Done;
}

}  // namespace

void add_profile_command(CLI::App& app, Action& action)
{
  auto* command =
      app.add_subcommand("profile", "time every layer on this machine; writes NAME.profile.json and NAME.xml");
  auto options = std::make_shared<CommandOptions>();
  command->add_option("WORKLOAD", options->workload, "workload file (YAML)")->required();
  command->add_option("-o,--output", options->output, "NAME of the two files to write")->required();
  command
      ->add_option("--slowdowns", options->slowdowns,
                   "devices of the platform: how many times slower than this machine each is (default: 1)")
      ->delimiter(',');
  command->add_option("--device", options->device, "cpu, cuda or cuda:N (default: cpu)");
  command->add_option("--threads", options->profile.threads, "of the computation (default: 1)");
  command->add_option("--repetitions", options->profile.repetitions, "passes that count, after 3 (default: 15)");
  command->add_option("--seed", options->profile.seed, "of parameters and data (default: 1)");
  command->add_option("--flows", options->flows, "TCP connections of a link (default: 1)");
  command->add_flag("--json", options->json, "print the profile as JSON");
  command->footer(footer);
  command->callback([options, &action] {
    action = [options] {
      options->profile.device = device_from_text(options->device);
      return profile(*options);
    };
  });
}

}  // namespace isobar::exec

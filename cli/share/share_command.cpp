#include "cli/commands.hpp"
#include "cli/share/share_options.hpp"
#include "core/base/command_options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

namespace isobar::cli {

namespace {

constexpr auto share_footer = R"(Example:
  isobar share examples/share.xml plan.json:examples/share.yaml \
    examples/share.yaml -o mix.json
)";

ExitCode share(const ShareOptions& options)
{
  constexpr std::uint64_t most_rounds = 100'000;
  if (options.rounds < 1 || options.rounds > most_rounds) {
    throw InputError("--rounds", fmt::format("{} is not from 1 to {}", options.rounds, most_rounds));
  }
  if (!options.group.empty() || !options.profiles.empty()) return choose_groups(options);
  if (options.at_once) throw InputError("--at-once", "goes with --group pairs");
  return share_devices(options);
}

}  // namespace

void add_share_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("share", "let jobs share devices and links, or choose which do");
  auto options = std::make_shared<ShareOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "PLATFORM", options->platform, "SimGrid platform file (XML)")->required();
  command->add_option("JOB", options->jobs,
                      "jobs: PLAN.json:WORKLOAD.yaml each, or WORKLOAD.yaml, which --allocator plans");
  add_file(*command, "--devices", options->devices,
           "props for the platform's hosts (YAML; default: NAME.devices.yaml next to NAME.xml, if it exists)");
  add_file(*command, "--profiles", options->profiles,
           "table of jobs in place of JOB (CSV, docs/formats/groups.md), for --group");
  command->option_defaults()->group("Goal");
  command->add_option("--group", options->group,
                      "choose which jobs share devices: pairs, triples, or auto, which makes groups of up to four "
                      "(default: all jobs share)");
  command->add_flag("--at-once", options->at_once,
                    "make pairs of all jobs that run at once on sets of their own, with the least longest round "
                    "(default: pairs take turns on one set)");
  command->add_option("--objective", options->objective, "what the plans of workloads alone minimize")
      ->capture_default_str();
  options->goal.add_goal_to(*command);
  command->option_defaults()->group("Search");
  command->add_option("--allocator", options->allocator, "allocator for workloads alone (isobar list allocators)")
      ->capture_default_str();
  options->goal.add_search_to(*command);
  add_count(*command, "--rounds", options->rounds, "rounds to simulate of each mix (default: 10)");
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output,
             "write the best mix, or the groups (JSON); plans that were made lie next to it");
  command->add_flag("--json", options->json, "print what was tried, or the groups, as JSON");
  command->footer(share_footer);
  command->callback([options, &action] { action = [options] { return share(*options); }; });
}

}  // namespace isobar::cli

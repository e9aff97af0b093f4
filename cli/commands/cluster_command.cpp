#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/platform_files.hpp"
#include "cli/sweep/cluster_run.hpp"
#include "core/base/command_options.hpp"
#include "core/base/standard_streams.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

namespace isobar::cli {

namespace {

constexpr auto cluster_footer = R"(Example:
  isobar cluster workloads/jobs/trace3.csv platforms/muri_8x8.xml --policy srtf
)";

struct ClusterCommand {
  ClusterOptions schedule;
  std::string devices;
  std::string jobs_file;
  bool json = false;
};

ExitCode cluster(const ClusterCommand& command)
{
  const ClusterOptions& options = command.schedule;
  rules_from(options);  // reports wrong options before anything is read
  refuse_overwriting({options.trace, options.platform, options.reading.header.string()}, {command.jobs_file});
  OutputFile jobs_file(command.jobs_file);
  const auto platform = load_platform(options.platform, command.devices);
  print_notes(platform);
  JobTrace trace = read_job_trace(options.trace, options.reading);
  if (trace.has_drawn_models && !command.json) {
    say(fmt::format("{}: gives no steps; each job draws a model with seed {}", shown(options.trace),
                    options.reading.seed));
  }
  const ScheduledTrace scheduled = schedule_trace(options, std::move(trace), platform);
  const auto& jobs = scheduled.trace.jobs;
  jobs_file.write(results::cluster_jobs_to_csv(jobs, scheduled.run, rules_from(options).step_factor));
  if (jobs_file.is_standard_output()) return ExitCode::Done;
  if (command.json) {
    print(scheduled_to_json(options, scheduled));
    return ExitCode::Done;
  }
  print(fmt::format("{} on {} in {}, --policy {}: {}{}\n\n{}", on_one_line(options.trace),
                    counted(platform.cluster().devices.size(), "device"), counted(scheduled.nodes.size(), "node"),
                    options.policy, counted(jobs.size(), "job"), text_of_left_out(scheduled.trace),
                    results::cluster_metrics_to_text(scheduled.metrics)));
  return ExitCode::Done;
}

}  // namespace

void add_cluster_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("cluster", "schedule training jobs that arrive over time on a cluster");
  auto whole = std::make_shared<ClusterCommand>();
  ClusterOptions* options = &whole->schedule;
  command->option_defaults()->group("Inputs");
  add_file(*command, "TRACE", options->trace, "trace of jobs (docs/formats/job_trace.md)")->required();
  add_file(*command, "PLATFORM", options->platform, "platform file with devices of one type")->required();
  add_file(*command, "--devices", whole->devices, "devices file (default: PLATFORM.devices.yaml if it exists)");
  command->add_option("--format", options->reading.format,
                      "format of the trace: muri, helios (Acme's too), pai or philly (default: by its content)");
  add_file(*command, "--header", options->reading.header, "header of a PAI trace (default: TRACE's name with .header)");
  add_count(*command, "--seed", options->reading.seed,
            "seed of the models drawn for traces without steps (default: 0)");
  command->add_flag("--at-once", options->at_once, "let all jobs arrive at time 0");
  command->add_option("--load", options->load,
                      "let jobs arrive this many times as fast: arrival times are divided by it");
  command->option_defaults()->group("Schedule");
  command->add_option("--policy", options->policy, "fifo, backfill, srtf, srsf, tiresias, muri or crossover")
      ->required();
  command
      ->add_option("--semantics", options->semantics,
                   "corrected: jobs pay their start cost once per start; published: as in Muri's simulator, where "
                   "running jobs pay it at every event")
      ->capture_default_str();
  command->add_option("--round", options->round,
                      "decide at multiples of this time only (default: at every arrival and end)");
  command->add_option("--step-factor", options->step_factor,
                      "time of a step in the cluster over its time alone (default: 1.015)");
  command->add_flag("--charge-moves", options->charges_moves,
                    "charge a running job its start cost when it gets other nodes");
  command->add_option("--order", options->order, "whose jobs are grouped first: srsf or tiresias (default: srsf)");
  command->add_option("--round-form", options->form,
                      "time of a group's round: overlap or Muri's slots (default: overlap)");
  add_count(*command, "--largest-group", options->largest_group, "most jobs that share devices, 2 to 6 (default: 4)");
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", whole->jobs_file, "write a CSV row for each job");
  command->add_flag("--json", whole->json, "print the metrics as JSON");
  command->footer(cluster_footer);
  command->callback([whole, &action] { action = [whole] { return cluster(*whole); }; });
}

}  // namespace isobar::cli

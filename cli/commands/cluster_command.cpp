#include "allocators/mix/cluster_schedule.hpp"
#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/platform_files.hpp"
#include "core/base/clock.hpp"
#include "core/base/command_options.hpp"
#include "core/base/quantity_text.hpp"
#include "core/base/standard_streams.hpp"
#include "core/cluster/nodes.hpp"
#include "core/jobs/job_trace.hpp"
#include "results/cluster_metrics.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace isobar::cli {

namespace {

constexpr auto footer = R"(Example:
  isobar cluster workloads/jobs/trace3.csv platforms/muri_8x8.xml --policy srtf
)";

using Json = nlohmann::ordered_json;
using allocators::Policy;
using allocators::ScheduleRules;
using allocators::Semantics;

const std::vector<std::string> semantics_names = {"corrected", "published"};
const std::vector<std::string> order_names = {"srsf", "tiresias"};
const std::vector<std::string> round_forms = {"overlap", "slots"};

struct ClusterOptions {
  std::string trace;
  std::string platform;
  std::string devices;
  TraceOptions reading;
  bool at_once = false;
  std::string policy;
  std::string semantics = semantics_names.front();
  std::string round;
  ScheduleRules rules;  // step_factor and charges_moves; the other options are texts
  std::string order;
  std::string form;
  std::optional<std::size_t> largest_group;
  std::string jobs_file;
  bool json = false;
};

/// The place of a word in a list. @throws InputError naming the option.
template <typename Value>
Value chosen(const char* option, const std::string& word, const std::vector<std::string>& words)
{
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<Value>(found - words.begin());
  const auto nearest = nearest_word(word, words);
  throw InputError(option, fmt::format("{} is none of {}{}", in_quotes(word), fmt::join(words, ", "),
                                       nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
}

ScheduleRules rules_from(const ClusterOptions& options)
{
  ScheduleRules rules = options.rules;
  rules.policy = chosen<Policy>("--policy", options.policy, allocators::policy_names());
  rules.semantics = chosen<Semantics>("--semantics", options.semantics, semantics_names);
  if (!(rules.step_factor >= 1 && rules.step_factor <= 1000)) {
    throw InputError("--step-factor", fmt::format("{} is not from 1 to 1000", rules.step_factor));
  }
  if (!options.round.empty()) {
    try {
      rules.round = seconds_from_text(options.round);
    } catch (const std::invalid_argument& fault) {
      throw InputError("--round", fault.what());
    }
    if (*rules.round <= Seconds(0)) throw InputError("--round", "is 0 s; leave it out for decisions at every event");
  }
  if (rules.semantics == Semantics::Published) {
    if (rules.round) throw InputError("--round", "the published simulator decides at every event; leave it out");
    if (rules.charges_moves) {
      throw InputError("--charge-moves", "the published simulator charges running jobs at every event; leave it out");
    }
  }
  if (!shares_devices(rules.policy)) {
    for (const auto& [option, is_given] :
         {std::pair("--order", !options.order.empty()), std::pair("--round-form", !options.form.empty()),
          std::pair("--largest-group", options.largest_group.has_value())}) {
      if (is_given) throw InputError(option, "goes with --policy muri or crossover");
    }
    return rules;
  }
  if (!options.order.empty()) rules.groups_by_service = chosen<int>("--order", options.order, order_names) == 1;
  if (!options.form.empty()) rules.form = chosen<allocators::RoundForm>("--round-form", options.form, round_forms);
  if (options.largest_group) rules.largest_group = *options.largest_group;
  if (rules.largest_group < 2 || rules.largest_group > 6) {
    throw InputError("--largest-group", fmt::format("{} is not from 2 to 6", rules.largest_group));
  }
  return rules;
}

/// The number of devices of each node. @throws InputError for devices of several types.
std::vector<std::size_t> nodes_from(const ClusterOptions& options, const sim::Platform& platform)
{
  const Cluster& cluster = platform.cluster();
  std::set<std::pair<std::string, FlopsPerSecond>> types;
  for (const auto& device : cluster.devices) types.emplace(device.type, device.speed);
  if (types.size() > 1) {
    throw InputError(options.platform,
                     fmt::format("has {} types of devices; the steps of a trace were measured on one", types.size()));
  }
  std::vector<std::size_t> nodes;
  for (const auto& node : nodes_of(cluster)) nodes.push_back(node.size());
  return nodes;
}

JobTrace trace_from(const ClusterOptions& options, const std::vector<std::size_t>& nodes)
{
  JobTrace trace = read_job_trace(options.trace, options.reading);
  std::erase_if(trace.jobs, [&](const Job& job) {
    const bool fits = allocators::fault_of_gang(job.devices, nodes).empty();
    if (!fits) trace.leave_out("more devices than the platform has");
    return !fits;
  });
  if (trace.jobs.empty()) {
    throw InputError(options.trace, "has no job that fits on " + options.platform + text_of_left_out(trace));
  }
  if (options.at_once) {
    for (Job& job : trace.jobs) job.arrival = Seconds(0);
  }
  return trace;
}

Json to_json(const ClusterOptions& options, const ScheduleRules& rules, const JobTrace& trace,
             const std::vector<std::size_t>& nodes, std::size_t devices, const ClusterRun& run,
             const results::ClusterMetrics& metrics, Seconds took)
{
  Json json = {{"schema", "isobar-cluster-run/1"}, {"trace", options.trace},   {"format", trace.format},
               {"platform", options.platform},     {"policy", options.policy}, {"semantics", options.semantics},
               {"step_factor", rules.step_factor}, {"nodes", nodes.size()},    {"devices", devices},
               {"jobs", trace.jobs.size()},        {"left_out", Json::array()}};
  json["round_s"] = rules.round ? Json(rules.round->value) : Json(nullptr);
  json["seed"] = trace.has_drawn_models ? Json(options.reading.seed) : Json(nullptr);
  for (const auto& [reason, rows] : trace.left_out) json["left_out"].push_back({{"reason", reason}, {"rows", rows}});
  json.update(Json::parse(results::cluster_metrics_to_json(metrics)));
  json["decisions"] = run.decisions;
  std::uint64_t starts = 0;
  for (const auto& job : run.jobs) starts += job.starts;
  json["starts"] = starts;
  json["shared_starts"] = run.shared_starts;
  json["wall"] = {{"simulate_s", took.value}};
  return json;
}

ExitCode cluster(const ClusterOptions& options)
{
  const ScheduleRules rules = rules_from(options);
  refuse_overwriting({options.trace, options.platform, options.reading.header.string()}, {options.jobs_file});
  OutputFile jobs_file(options.jobs_file);
  const auto platform = load_platform(options.platform, options.devices);
  print_notes(platform);
  const auto nodes = nodes_from(options, platform);
  const std::size_t devices = platform.cluster().devices.size();
  const JobTrace trace = trace_from(options, nodes);
  if (trace.has_drawn_models && !options.json) {
    say(fmt::format("{}: gives no steps; each job draws a model with seed {}", shown(options.trace),
                    options.reading.seed));
  }
  const auto begin = Clock::now();
  const ClusterRun run = allocators::schedule_jobs(trace.jobs, nodes, rules);
  const Seconds took = time_since(begin);
  const auto metrics =
      results::cluster_metrics(trace.jobs, run, devices, rules.step_factor, shares_devices(rules.policy));
  jobs_file.write(results::cluster_jobs_to_csv(trace.jobs, run, rules.step_factor));
  if (jobs_file.is_standard_output()) return ExitCode::Done;
  if (options.json) {
    print(to_json(options, rules, trace, nodes, devices, run, metrics, took)
              .dump(2, ' ', false, Json::error_handler_t::replace) +
          "\n");
    return ExitCode::Done;
  }
  print(fmt::format("{} on {} in {}, --policy {}: {}{}\n\n{}", on_one_line(options.trace), counted(devices, "device"),
                    counted(nodes.size(), "node"), options.policy, counted(trace.jobs.size(), "job"),
                    text_of_left_out(trace), results::cluster_metrics_to_text(metrics)));
  return ExitCode::Done;
}

}  // namespace

void add_cluster_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("cluster", "schedule training jobs that arrive over time on a cluster");
  auto options = std::make_shared<ClusterOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "TRACE", options->trace, "trace of jobs (docs/formats/job_trace.md)")->required();
  add_file(*command, "PLATFORM", options->platform, "platform file with devices of one type")->required();
  add_file(*command, "--devices", options->devices, "devices file (default: PLATFORM.devices.yaml if it exists)");
  command->add_option("--format", options->reading.format,
                      "format of the trace: muri, helios (Acme's too), pai or philly (default: by its content)");
  add_file(*command, "--header", options->reading.header, "header of a PAI trace (default: TRACE's name with .header)");
  add_count(*command, "--seed", options->reading.seed,
            "seed of the models drawn for traces without steps (default: 0)");
  command->add_flag("--at-once", options->at_once, "let all jobs arrive at time 0");
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
  command->add_option("--step-factor", options->rules.step_factor, "time of a step in the cluster over its time alone")
      ->capture_default_str();
  command->add_flag("--charge-moves", options->rules.charges_moves,
                    "charge a running job its start cost when it gets other nodes");
  command->add_option("--order", options->order, "whose jobs are grouped first: srsf or tiresias (default: srsf)");
  command->add_option("--round-form", options->form,
                      "time of a group's round: overlap or Muri's slots (default: overlap)");
  add_count(*command, "--largest-group", options->largest_group, "most jobs that share devices, 2 to 6 (default: 4)");
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->jobs_file, "write a CSV row for each job");
  command->add_flag("--json", options->json, "print the metrics as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return cluster(*options); }; });
}

}  // namespace isobar::cli

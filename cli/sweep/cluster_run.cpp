#include "cli/sweep/cluster_run.hpp"

#include "core/base/clock.hpp"
#include "core/base/command_options.hpp"
#include "core/cluster/nodes.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;
using allocators::Policy;
using allocators::ScheduleRules;
using allocators::Semantics;

const std::vector<std::string> semantics_names = {"corrected", "published"};
const std::vector<std::string> order_names = {"srsf", "tiresias"};
const std::vector<std::string> round_forms = {"overlap", "slots"};

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

/// The jobs that fit, as they arrive.
void take_jobs(const ClusterOptions& options, const std::vector<std::size_t>& nodes, JobTrace& trace)
{
  std::erase_if(trace.jobs, [&](const Job& job) {
    const bool fits = allocators::fault_of_gang(job.devices, nodes).empty();
    if (!fits) trace.leave_out("more devices than the platform has");
    return !fits;
  });
  if (trace.jobs.empty()) {
    throw InputError(options.trace, "has no job that fits on " + options.platform + text_of_left_out(trace));
  }
  for (Job& job : trace.jobs) job.arrival = options.at_once ? Seconds(0) : job.arrival / options.load.value_or(1);
}

}  // namespace

ScheduleRules rules_from(const ClusterOptions& options)
{
  ScheduleRules rules;
  rules.policy = chosen<Policy>("--policy", options.policy, allocators::policy_names());
  rules.semantics = chosen<Semantics>("--semantics", options.semantics, semantics_names);
  rules.charges_moves = options.charges_moves;
  rules.step_factor = options.step_factor.value_or(rules.step_factor);
  if (!(rules.step_factor >= 1 && rules.step_factor <= 1000)) {
    throw InputError("--step-factor", fmt::format("{} is not from 1 to 1000", rules.step_factor));
  }
  if (options.load && options.at_once) throw InputError("--load", "all jobs arrive at once; leave one of the two out");
  if (options.load && !(*options.load >= 1e-6 && *options.load <= 1e6)) {
    throw InputError("--load", fmt::format("{} is not from 1e-6 to 1e6", *options.load));
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

ScheduledTrace schedule_trace(const ClusterOptions& options, JobTrace trace, const sim::Platform& platform)
{
  const ScheduleRules rules = rules_from(options);
  ScheduledTrace scheduled{std::move(trace), nodes_from(options, platform), {}, {}, {}};
  take_jobs(options, scheduled.nodes, scheduled.trace);
  const auto& jobs = scheduled.trace.jobs;
  const auto begin = Clock::now();
  scheduled.run = allocators::schedule_jobs(jobs, scheduled.nodes, rules);
  scheduled.took = time_since(begin);
  scheduled.metrics = results::cluster_metrics(jobs, scheduled.run, platform.cluster().devices.size(),
                                               rules.step_factor, shares_devices(rules.policy));
  return scheduled;
}

std::string scheduled_to_json(const ClusterOptions& options, const ScheduledTrace& scheduled)
{
  const ScheduleRules rules = rules_from(options);
  const auto& [trace, nodes, run, metrics, took] = scheduled;
  Json json = {{"schema", "isobar-cluster-run/1"}, {"trace", options.trace},   {"format", trace.format},
               {"platform", options.platform},     {"policy", options.policy}, {"semantics", options.semantics},
               {"step_factor", rules.step_factor}};
  json["load"] = options.at_once ? Json(nullptr) : Json(options.load.value_or(1));
  json["nodes"] = nodes.size();
  json["devices"] = std::accumulate(nodes.begin(), nodes.end(), std::size_t{0});
  json["jobs"] = trace.jobs.size();
  json["left_out"] = Json::array();
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
  return json_lines(json);
}

std::vector<std::optional<double>> numbers_of(const ClusterOptions& options, const ScheduledTrace& scheduled)
{
  const Json json = Json::parse(scheduled_to_json(options, scheduled));
  std::vector<std::optional<double>> numbers;
  for (const auto& number : results::cluster_numbers()) numbers.emplace_back(json[number.name].get<double>());
  return numbers;
}

}  // namespace isobar::cli

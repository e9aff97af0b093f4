#include "cli/planning/simulation.hpp"

#include "cli/workload_variants.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/prediction_interval.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/chrome_trace.hpp"
#include "core/program/walk.hpp"
#include "results/result.hpp"
#include "results/trace/overlap.hpp"
#include "results/utilization.hpp"
#include "schedules/lowering/fold.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::cli {

namespace {

/// Passes each event to several sinks.
class Tee : public TraceSink {
 public:
  explicit Tee(std::vector<TraceSink*> sinks) : sinks_(std::move(sinks)) {}
  void record(const TraceEvent& event) override
  {
    for (TraceSink* sink : sinks_) sink->record(event);
  }
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override
  {
    for (TraceSink* sink : sinks_) sink->memory_changed(rank, tier, time, memory);
  }
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
  {
    for (TraceSink* sink : sinks_) sink->link_changed(link, time, transfers);
  }

 private:
  std::vector<TraceSink*> sinks_;
};

/// Steps of more instructions are folded, which takes longer than playing a short one.
constexpr std::uint64_t most_whole_instructions = std::uint64_t{1} << 18;

/// The program of a plan, or one in which some of several equal devices act for all.
struct SimulatedStep {
  std::unique_ptr<Program> program;
  std::vector<schedules::LinkUsers> links = {};
  std::vector<std::size_t> acts_for = {};  ///< by rank; empty: each acts for itself
  std::string note = {};                   ///< FoldedStep::note

  /// How many devices act; none: all.
  std::optional<std::size_t> acting_devices() const
  {
    if (acts_for.empty()) return std::nullopt;
    return std::set(acts_for.begin(), acts_for.end()).size();
  }
};

SimulatedStep step_of(const Plan& plan, const compute::AsTrained& trained, bool may_fold)
{
  SimulatedStep whole{schedules::make_program(plan, trained.workload(), trained.cluster())};
  if (!may_fold || divides_operators(plan) || instructions_of(*whole.program) <= most_whole_instructions) return whole;
  constexpr bool keeps_stages = true;
  auto folded = schedules::fold(plan, trained.workload(), trained.cluster(), keeps_stages);
  auto* step = std::get_if<schedules::FoldedStep>(&folded);
  if (step == nullptr) return whole;
  return {std::move(step->program), std::move(step->links), std::move(step->acts_for), std::move(step->note)};
}

}  // namespace

std::string simulate_plan(const Inputs& inputs, const Plan& plan, std::uint64_t iterations,
                          const std::string& trace_file, bool unfolded)
{
  const Cluster& cluster = inputs.platform.cluster();
  const Workload workload = as_planned(inputs, plan);
  const compute::AsTrained trained(plan, workload, cluster);
  const SimulatedStep step = step_of(plan, trained, trace_file.empty() && !unfolded);
  const Program& program = *step.program;
  const auto devices = devices_of(plan);
  std::vector<std::string> hosts = devices;
  std::vector<std::string> sites;
  for (const auto& device : devices) sites.push_back(cluster.devices[cluster.device_index(device).value()].site);
  if (cluster.data_server) {
    hosts.push_back(*cluster.data_server);
    sites.emplace_back();
  }

  results::StageMeter meter(program.ranks(), step.acts_for);
  std::vector<TraceSink*> sinks = {&meter};
  results::OverlapMeter overlap(program.ranks());
  if (divides_operators(plan)) sinks.push_back(&overlap);
  std::ofstream trace_stream;
  std::optional<ChromeTraceWriter> writer;
  if (!trace_file.empty()) {
    trace_stream.open(trace_file, std::ios::binary);
    if (!trace_stream) throw EnvironmentError("the timeline cannot be written");
    sinks.push_back(&writer.emplace(trace_stream, program, hosts, sites));
  }
  Tee tee(sinks);
  const CountedStep counted = counted_step(plan);
  const std::uint64_t all = counted.before + iterations + counted.after;
  sim::Platform platform = inputs.platform;
  std::map<std::string, double> users;  // of links over which flows stand for several
  for (const auto& [link, number] : step.links) {
    if (number == 1) continue;
    users[link] = number;
    platform.scale(sim::Property::Bandwidth, 1 / number, link);
  }
  const auto report = sim::simulate(platform, program, sim::rank_hosts(plan, trained.cluster()), all, &tee);
  if (writer) {
    writer->finish();
    if (!trace_stream) throw EnvironmentError("the timeline cannot be written; is the disk full?");
  }

  results::Result result;
  const Seconds total = std::accumulate(report.step_times.begin(), report.step_times.end(), Seconds(0));
  result.step_times.assign(report.step_times.begin() + static_cast<std::ptrdiff_t>(counted.before),
                           report.step_times.end() - static_cast<std::ptrdiff_t>(counted.after));
  result.step_time =
      std::accumulate(result.step_times.begin(), result.step_times.end(), Seconds(0)) / static_cast<double>(iterations);
  result.step_bound = plan.step_bound.value();
  if (const auto basis = compute::basis_of(plan, trained, workload, cluster, result.step_time)) {
    result.interval = compute::interval_of(*basis, result.step_time);
  }
  result.stages = meter.stages(plan, all, result.step_time);
  if (divides_operators(plan)) result.overlaps = overlap.overlaps(devices, all);
  result.utilization = results::utilization_of(workload, inputs.has_measured_layers, cluster, result.stages,
                                               plan.goal.microbatches, result.step_time);
  result.compute = inputs.has_measured_layers ? "profile" : name_of(workload.compute);
  for (const auto& link : report.links) {
    const auto found = users.find(link.name);
    const double flows = found == users.end() ? 1 : found->second;
    result.links.push_back({link.name, flows * link.bytes / static_cast<double>(all), link.busy_time / total});
  }
  result.activities = report.activities;
  result.acting_devices = step.acting_devices();
  result.folding = step.note;
  result.network = sim::network_settings();
  result.simgrid_version = sim::simgrid_version();
  result.plan = plan;
  result.inputs = {inputs.platform_fingerprint, inputs.devices_file, inputs.workload_fingerprint,
                   inputs.profile_fingerprint};
  result.simulate_time = report.wall_time;
  return result_to_json(result);
}

Stamp stamp_of(const std::string& result_json, const Plan& plan, const Inputs& inputs)
{
  const auto result = nlohmann::json::parse(result_json);
  Stamp stamp;
  stamp.step_time = Seconds(result["step_time_s"].get<double>());
  for (const auto& stage : result["stages"]) {
    stamp.peak_memory[stage["device"].get<std::string>()] = Bytes(stage["peak_memory_bytes"].get<double>());
  }
  stamp.platform_hash = inputs.platform_fingerprint.hash;
  stamp.workload_hash = inputs.workload_fingerprint.hash;
  stamp.plan_hash = hash_of(plan);
  stamp.version = ISOBAR_VERSION;
  stamp.simgrid_version = result["simgrid_version"].get<std::string>();
  return stamp;
}

}  // namespace isobar::cli

#include "cli/rounds/outer_simulation.hpp"

#include "cli/planning/planning.hpp"
#include "cli/rounds/outer_planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/program/chrome_trace.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"
#include "schedules/rounds/played_round.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <utility>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

/// Memory of the devices, at its most.
class PeakMemory : public TraceSink {
 public:
  PeakMemory(const Program& program, TraceSink* next) : next_(next)
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) peaks_.push_back(program.resident(rank, Tier::Device));
  }
  void record(const TraceEvent& event) override
  {
    if (next_ != nullptr) next_->record(event);
  }
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override
  {
    if (tier == Tier::Device) peaks_[rank] = std::max(peaks_[rank], memory);
    if (next_ != nullptr) next_->memory_changed(rank, tier, time, memory);
  }
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
  {
    if (next_ != nullptr) next_->link_changed(link, time, transfers);
  }
  const std::vector<Bytes>& peaks() const { return peaks_; }

 private:
  TraceSink* next_;
  std::vector<Bytes> peaks_;
};

std::vector<sim::RankHost> hosts_of(const OuterPlan& plan, const Cluster& cluster)
{
  std::vector<sim::RankHost> hosts;
  for (const auto& worker : plan.workers) {
    for (auto& host : sim::rank_hosts(worker.plan, cluster)) hosts.push_back(std::move(host));
  }
  return hosts;
}

schedules::PlayedRound played(const OuterPlan& plan, const Inputs& inputs)
{
  const auto workloads = workloads_of(plan, inputs);
  return schedules::play_round({plan, inputs.workload, workloads, inputs.platform.cluster()});
}

void compare_claim(const char* key, Seconds claimed, Seconds found, std::vector<std::string>& faults)
{
  constexpr double tolerance = 1e-6;
  if (std::abs((claimed - found).value) <= tolerance * found.value) return;
  const auto [claim, fact] = distinct_texts(claimed.value, found.value);
  faults.push_back(fmt::format("{}: claims {}; it is {}", key, claim, fact));
}

}  // namespace

Inputs load_rounds(const InputOptions& options, const OuterPlan& plan, const std::string& file)
{
  Plan whole = plan.workers.front().plan;
  std::erase_if(whole.without, [&](const std::string& device) {
    return std::ranges::any_of(plan.workers, [&](const OuterWorker& worker) {
      return std::ranges::find(worker.plan.without, device) == worker.plan.without.end();
    });
  });
  return load(options, whole, file);
}

Cluster cluster_of_worker(const Plan& worker, const Cluster& cluster)
{
  std::vector<std::string> others = worker.without;
  std::erase_if(others, [&](const std::string& device) { return !cluster.device_index(device); });
  return without_devices(cluster, others, "without");
}

std::vector<std::string> faults_of_rounds(const OuterPlan& plan, const Inputs& inputs)
{
  const Cluster& cluster = inputs.platform.cluster();
  std::vector<std::string> faults;
  for (std::size_t k = 0; k < plan.workers.size(); ++k) {
    const Plan& own = plan.workers[k].plan;
    const auto place = fmt::format("workers[{}].plan", k);
    for (const auto& fault : all_faults_of(own, as_planned(inputs, own), cluster_of_worker(own, cluster))) {
      faults.push_back(fmt::format("{}.{}", place, fault));
    }
  }
  if (!faults.empty()) return faults;
  const auto round = played(plan, inputs);
  faults = schedules::memory_faults_of(round, cluster);
  compare_claim("predicted.round_time_s", plan.predicted.round_time, round.predicted.round_time, faults);
  compare_claim("predicted.slowest_steps_s", plan.predicted.slowest_steps, round.predicted.slowest_steps, faults);
  compare_claim("round_bound_s", plan.round_bound, round.bound, faults);
  const auto& claimed = plan.predicted.traffic;
  const auto& found = round.predicted.traffic;
  const bool is_same = std::ranges::equal(claimed, found, [](const OuterTraffic& a, const OuterTraffic& b) {
    return a.from == b.from && a.to == b.to && a.bytes == b.bytes;
  });
  if (!is_same) faults.emplace_back("predicted.traffic: is not what these workers exchange in a round");
  return faults;
}

void check_rounds(const OuterPlan& plan, const std::string& file, const Inputs& inputs)
{
  auto lines = other_inputs_of(plan.workers.front().plan, file, inputs);
  const auto faults = faults_of_rounds(plan, inputs);
  if (faults.empty()) {
    for (const auto& line : lines) spdlog::warn("{}", line);
    return;
  }
  for (const auto& fault : faults) lines.push_back(on_one_line(file) + ": " + fault);
  throw InputError(lines);
}

std::string simulate_rounds(const Inputs& inputs, const OuterPlan& plan, std::uint64_t rounds,
                            const std::string& trace_file)
{
  const Cluster& cluster = inputs.platform.cluster();
  const auto workloads = workloads_of(plan, inputs);
  const auto built = schedules::build_round({plan, inputs.workload, workloads, cluster}, schedules::RoundSteps::All);
  std::ofstream trace_stream;
  std::optional<ChromeTraceWriter> writer;
  if (!trace_file.empty()) {
    trace_stream.open(trace_file, std::ios::binary);
    if (!trace_stream) throw EnvironmentError("the timeline cannot be written");
    std::vector<std::string> sites;
    for (const auto& device : built.devices) {
      const auto index = cluster.device_index(device);
      sites.push_back(index ? cluster.devices[*index].site : "");
    }
    writer.emplace(trace_stream, *built.program, built.devices, sites);
  }
  PeakMemory memory(*built.program, writer ? &*writer : nullptr);
  const auto report = sim::simulate(inputs.platform, *built.program, hosts_of(plan, cluster), rounds, &memory);
  if (writer) {
    writer->finish();
    if (!trace_stream) throw EnvironmentError("the timeline cannot be written; is the disk full?");
  }
  const Seconds round = report.step_times.back();
  Json times = Json::array();
  for (const Seconds time : report.step_times) times.push_back(time.value);
  Json workers = Json::array();
  for (const auto& [name, steps, own] : plan.workers) {
    workers.push_back({{"name", name}, {"steps", steps}, {"step_time_s", own.predicted->step_time.value}});
  }
  Json traffic = Json::array();
  for (const auto& [from, to, bytes] : plan.predicted.traffic) {
    traffic.push_back({{"from", from}, {"to", to}, {"bytes", bytes.value}, {"bytes_per_s", (bytes / round).value}});
  }
  Json links = Json::array();
  const auto all = static_cast<double>(rounds);
  for (const auto& link : report.links) {
    links.push_back({{"name", link.name},
                     {"bytes_per_round", link.bytes.value / all},
                     {"busy_s_per_round", link.busy_time.value / all}});
  }
  Json peaks = Json::object();
  for (std::size_t rank = 0; rank < built.devices.size(); ++rank) {
    if (cluster.device_index(built.devices[rank])) peaks[built.devices[rank]] = memory.peaks()[rank].value;
  }
  const Json result = {
      {"schema", "isobar-rounds-result/1"},
      {"round_time_s", round.value},
      {"step_time_s", round.value / static_cast<double>(plan.outer.steps)},
      {"predicted_round_time_s", plan.predicted.round_time.value},
      {"round_bound_s", plan.round_bound.value},
      {"round_times_s", std::move(times)},
      {"steps", plan.outer.steps},
      {"samples_per_round", samples_of_round(plan, inputs.workload.micro_batch)},
      {"samples_per_s", static_cast<double>(samples_of_round(plan, inputs.workload.micro_batch)) / round.value},
      {"tokens_per_s", tokens_per_second(plan, round, inputs.workload)},
      {"utilization_fraction", plan.predicted.slowest_steps / round},
      {"numerics", numerics_note(plan.outer)},
      {"workers", std::move(workers)},
      {"traffic", std::move(traffic)},
      {"links", std::move(links)},
      {"peak_memory_bytes", std::move(peaks)},
      {"activities", report.activities},
      {"simgrid_version", sim::simgrid_version()},
      {"wall", {{"simulate_s", report.wall_time.value}}}};
  return json_lines(result);
}

std::string summary_of_rounds(const std::string& result_json)
{
  const auto result = nlohmann::json::parse(result_json);
  const auto number = [&result](const char* key) { return result[key].get<double>(); };
  std::string text = fmt::format(
      "round {:.6g} s of {} steps, none below {:.6g} s; {:.6g} s a step\n"
      "{:.1f} tokens/s, {:.1f} % of the time in steps; predicted round {:.6g} s\n{}\n"
      "{} activities in {:.3g} s (SimGrid {})\n\n",
      number("round_time_s"), result["steps"].get<std::uint64_t>(), number("round_bound_s"), number("step_time_s"),
      number("tokens_per_s"), 100 * number("utilization_fraction"), number("predicted_round_time_s"),
      result["numerics"].get<std::string>(), result["activities"].get<std::uint64_t>(),
      result["wall"]["simulate_s"].get<double>(), result["simgrid_version"].get<std::string>());
  std::vector<std::vector<std::string>> rows;
  for (const auto& pair : result["traffic"]) {
    rows.push_back({pair["from"].get<std::string>(), pair["to"].get<std::string>(),
                    text_of(Bytes(pair["bytes"].get<double>())),
                    text_of(BytesPerSecond(pair["bytes_per_s"].get<double>()))});
  }
  return text + results::table_of({"from", "to", "a round", "on average"}, rows);
}

}  // namespace isobar::cli

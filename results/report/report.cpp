#include "results/report/report.hpp"

#include "core/check/tier_memory.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/json_text.hpp"
#include "results/explanation.hpp"
#include "results/report/site_map.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Fingerprint& fingerprint)
{
  return {{"name", text_of(fingerprint)}, {"hash", fingerprint.hash}};
}

/// Load of several links: that of the busiest one.
Json load_of(const std::vector<std::string>& names, const std::vector<LinkMetrics>& links)
{
  const LinkMetrics* busiest = nullptr;
  for (const auto& link : links) {
    if (std::find(names.begin(), names.end(), link.name) == names.end()) continue;
    if (busiest == nullptr || link.busy_fraction > busiest->busy_fraction) busiest = &link;
  }
  if (busiest == nullptr) return nullptr;
  return {{"name", busiest->name}, {"bytes", busiest->bytes.value}, {"busy_fraction", busiest->busy_fraction}};
}

/// A shard of a stage as the plan's file numbers stages: one row of the page, whatever the parts that it is played in.
struct StageRow {
  std::size_t number = 0;              ///< of the stage in the file
  std::vector<PlacedShard> parts;      ///< of the plan, by layers
  std::vector<std::size_t> of_result;  ///< the same as indices of the result's stages
};

/// In the order of stages, replicas and shards.
std::vector<StageRow> stage_rows(const Plan& plan)
{
  const auto numbers = numbers_in_file(plan);
  const auto placed = placed_shards(plan);
  std::vector<StageRow> rows;
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::size_t> row_of;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const std::size_t number = numbers[placed[i].stage];
    const auto [row, is_new] = row_of.try_emplace({number, placed[i].replica, placed[i].shard}, rows.size());
    if (is_new) rows.push_back({number, {}, {}});
    rows[row->second].parts.push_back(placed[i]);
    rows[row->second].of_result.push_back(i);
  }
  return rows;
}

/// Sites with all their devices, used or unused.
Json sites_of(const ReportedRun& run, const SiteMap& map)
{
  std::map<std::string, std::vector<std::size_t>> stages_of_device;  // as indices of the run's stages
  const auto rows = stage_rows(run.result.plan);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    stages_of_device[shard_of(run.result.plan, rows[i].parts.front()).device].push_back(i);
  }
  Json sites = Json::array();
  for (const auto& site : map.sites) {
    Json devices = Json::array();
    for (const std::size_t index : site.devices) {
      const Device& device = run.cluster.devices[index];
      const auto& stages = stages_of_device[device.name];
      devices.push_back({{"name", device.name},
                         {"type", device.type},
                         {"speed_flops_per_s", device.speed_at(run.workload.dtype).value},
                         {"memory_bytes", device.memory.value},
                         {"stage", stages.empty() ? Json(nullptr) : Json(stages.front())},
                         {"stages", stages}});
    }
    sites.push_back({{"name", site.name}, {"is_data_server", site.devices.empty()}, {"devices", std::move(devices)}});
  }
  return sites;
}

Json connections_of(const ReportedRun& run, const SiteMap& map)
{
  const auto between_sites = [&](const BytesBetweenRanks& between_ranks) {
    std::map<std::pair<std::size_t, std::size_t>, Bytes> bytes_of;
    for (const auto& [ranks, bytes] : between_ranks) {
      bytes_of[{map.site_of[map.device_of[ranks.first]], map.site_of[map.device_of[ranks.second]]}] += bytes;
    }
    return bytes_of;
  };
  auto sent = between_sites(run.simulated.sent);
  auto synced = between_sites(run.simulated.synced);
  Json connections = Json::array();
  for (const auto& connection : map.connections) {
    connections.push_back({{"a", connection.a},
                           {"b", connection.b},
                           {"a_to_b_bytes", sent[{connection.a, connection.b}].value},
                           {"b_to_a_bytes", sent[{connection.b, connection.a}].value},
                           {"sync_a_to_b_bytes", synced[{connection.a, connection.b}].value},
                           {"sync_b_to_a_bytes", synced[{connection.b, connection.a}].value},
                           {"latency_s", connection.path.latency.value},
                           {"bandwidth_bytes_per_s", connection.path.bandwidth.value},
                           {"links", connection.links},
                           {"busiest_link", load_of(connection.links, run.result.links)}});
  }
  return connections;
}

Json stages_of(const ReportedRun& run, const SiteMap& map)
{
  Json stages = Json::array();
  const Plan& plan = run.result.plan;
  const Json in_file = Json::parse(lasting_plan_to_json(plan))["stages"];
  for (const auto& row : stage_rows(plan)) {
    const PlacedShard& placed = row.parts.front();
    const StageMetrics& metrics = run.result.stages.at(row.of_result.front());
    const Stage& stage = plan.stages[placed.stage];
    const std::size_t last_layer = plan.stages[row.parts.back().stage].last_layer;
    std::size_t resident_layers = 0;
    for (const auto& part : row.parts) {
      const Stage& layers = plan.stages[part.stage];
      Residence state = layers.residence;
      state.activations = Tier::Device;
      if (state.is_on_device()) resident_layers += layers.last_layer - layers.first_layer + 1;
    }
    Seconds compute;
    Seconds send;
    for (const std::size_t part : row.of_result) {
      compute += run.result.stages.at(part).compute;
      send += run.result.stages.at(part).send;
    }
    const Replica& replica = stage.replicas[placed.replica];
    const Device& device = run.cluster.devices[map.device_of[placed.rank]];
    stages.push_back({{"stage", row.number},
                      {"replica", placed.replica},
                      {"replicas", stage.replicas.size()},
                      {"shard", placed.shard},
                      {"shards", replica.shards.size()},
                      {"microbatches", replica.microbatches > 0 ? replica.microbatches : plan.goal.microbatches},
                      {"device", metrics.device},
                      {"type", device.type},
                      {"site", map.site_of[map.device_of[placed.rank]]},
                      {"first_layer", stage.first_layer},
                      {"last_layer", last_layer},
                      {"first_layer_name", run.workload.layers[stage.first_layer].name},
                      {"last_layer_name", run.workload.layers[last_layer].name},
                      {"resident_layers", resident_layers},
                      {"residence", in_file[row.number].value("residence", Json(nullptr))},
                      {"speed_flops_per_s", device.speed_at(run.workload.dtype).value},
                      {"memory_bytes", device.memory.value},
                      {"peak_memory_bytes", metrics.peak_memory.value},
                      {"compute_s", compute.value},
                      {"send_s", send.value},
                      {"idle_s", metrics.idle.value},
                      {"own_link", load_of(map.own_links[placed.rank], run.result.links)}});
  }
  return stages;
}

/// Instructions of the step, then of the next one, by column: that takes a third of the space of an object for each.
Json timeline_of(const RecordedStep& recorded, const std::vector<std::size_t>& number_of_stage)
{
  const std::array<const char*, 15> columns = {"rank",    "lane",  "opcode",      "payload",    "pass",
                                               "step",    "stage", "first_layer", "last_layer", "microbatch",
                                               "begin_s", "end_s", "bytes",       "alone_s",    "memory_bytes"};
  Json events;
  for (const char* column : columns) events[column] = Json::array();
  const auto add = [&](const TraceEvent& event) {
    const Instruction& instruction = event.instruction;
    const auto name_if = [](bool has, std::string_view name) { return has ? Json(name) : Json(nullptr); };
    events["rank"].push_back(event.rank);
    events["lane"].push_back(recorded.lanes[event.rank][instruction.lane].name);
    events["opcode"].push_back(name_of(instruction.opcode));
    events["payload"].push_back(name_if(!is_computation(instruction.opcode), name_of(instruction.payload)));
    events["pass"].push_back(name_if(is_copy(instruction.opcode), name_of(instruction.pass)));
    events["step"].push_back(event.step);
    events["stage"].push_back(number_of_stage.at(instruction.stage));
    events["first_layer"].push_back(instruction.first_layer);
    events["last_layer"].push_back(instruction.last_layer);
    events["microbatch"].push_back(instruction.microbatch);
    events["begin_s"].push_back(event.begin.value);
    events["end_s"].push_back(event.end.value);
    events["bytes"].push_back(instruction.size.value);
    events["alone_s"].push_back(instruction.time.value);
    events["memory_bytes"].push_back(event.memory.value);
  };
  for (const auto& event : recorded.events) add(event);
  for (const auto& event : recorded.next) add(event);
  return {{"instructions", recorded.instructions}, {"events", std::move(events)}};
}

/// What several ranks hold together.
MemoryCurve sum_of(const std::vector<const MemoryCurve*>& curves)
{
  std::vector<std::tuple<Seconds, std::size_t, Bytes>> changes;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    for (std::size_t k = 0; k < curves[i]->times.size(); ++k) {
      changes.emplace_back(curves[i]->times[k], i, curves[i]->bytes[k]);
    }
  }
  std::sort(changes.begin(), changes.end());
  MemoryCurve sum;
  std::vector<Bytes> held(curves.size());
  for (const auto& [time, curve, bytes] : changes) {
    held[curve] = bytes;
    if (sum.times.empty() || sum.times.back() < time) {
      sum.times.push_back(time);
      sum.bytes.emplace_back();
    }
    sum.bytes.back() = std::accumulate(held.begin(), held.end(), Bytes(0));
  }
  return sum;
}

/// The memories that the plan's ranks use, over the step.
Json memory_of(const ReportedRun& run, const RecordedStep& recorded)
{
  Json memories = Json::array();
  for (const auto& memory : used_memories(run.result.plan, run.cluster)) {
    std::vector<const MemoryCurve*> curves;
    for (const std::size_t rank : memory.ranks) {
      curves.push_back(&recorded.memory.at(rank)[static_cast<std::size_t>(memory.tier)]);
    }
    const MemoryCurve held = sum_of(curves);
    if (held.bytes.empty() || *std::max_element(held.bytes.begin(), held.bytes.end()) <= Bytes(0)) continue;
    Json times = Json::array();
    Json bytes = Json::array();
    Bytes peak;
    for (std::size_t i = 0; i < held.times.size(); ++i) {
      const Bytes taken = memory.taken_by(held.bytes[i]);
      times.push_back(held.times[i].value);
      bytes.push_back(taken.value);
      peak = std::max(peak, taken);
    }
    memories.push_back({{"name", memory.name},
                        {"tier", name_of(memory.tier)},
                        {"has_bytes", memory.has.value},
                        {"peak_bytes", peak.value},
                        {"times_s", std::move(times)},
                        {"bytes", std::move(bytes)}});
  }
  return memories;
}

Json measured_of(const ReportedRun& run)
{
  const MeasuredStep& measured = *run.measured;
  Json json = {{"file", measured.file}, {"step", measured.step}, {"step_time_s", measured.time.value}};
  json["timeline"] = timeline_of(measured.recorded, numbers_in_file(run.result.plan));
  json["memory"] = memory_of(run, measured.recorded);
  return json;
}

Json json_of(const WhatIfAnswer& answer)
{
  Json json = {{"change", answer.what_if.text},
               {"factor", answer.what_if.factor},
               {"step_time_s", or_null(answer.kept)},
               {"planned_anew_step_time_s", or_null(answer.planned_anew)}};
  if (const double saved = answer.saved_by_keeping(); saved > 0) {
    json["note"] = fmt::format("the kept plan is better: its step is {:.3g} % shorter", 100 * saved);
  }
  if (!answer.fault.empty()) json["fault"] = answer.fault;
  return json;
}

/// The shorter of the two step times; infinite without an answer.
Seconds best_of(const WhatIfAnswer& answer)
{
  const Seconds never(std::numeric_limits<double>::infinity());
  return std::min(answer.kept.value_or(never), answer.planned_anew.value_or(never));
}

/// Replaces the placeholders of a frame by the parts of the same names.
std::string filled(std::string_view frame, const std::map<std::string_view, std::string_view>& parts)
{
  std::string page;
  std::size_t filled_count = 0;
  while (true) {
    const std::size_t begin = frame.find('@');
    page += frame.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const std::size_t end = frame.find('@', begin + 1);
    ensure(end != std::string_view::npos, "each placeholder of the frame ends with @");
    page += parts.at(frame.substr(begin + 1, end - begin - 1));
    ++filled_count;
    frame.remove_prefix(end + 1);
  }
  ensure(filled_count == parts.size(), "the frame has a placeholder for every part");
  return page;
}

/// JSON as the text of a script element, escaped so that nothing in it can end the element.
std::string escaped(const std::string& json)
{
  std::string result;
  result.reserve(json.size());
  for (const char character : json) {
    if (character == '<') {
      result += "\\u003c";
    } else {
      result += character;
    }
  }
  return result;
}

}  // namespace

double WhatIfAnswer::saved_by_keeping() const
{
  constexpr double least_shown = 5e-5;
  if (!kept || !planned_anew || *planned_anew <= Seconds(0)) return 0;
  const double saved = 1 - *kept / *planned_anew;
  return saved > least_shown ? saved : 0;
}

std::string run_to_json(const ReportedRun& run)
{
  const Result& result = run.result;
  const Plan& plan = result.plan;
  const SiteMap map = site_map_of(plan, run.cluster);
  Bytes peak;
  for (const auto& stage : result.stages) peak = std::max(peak, stage.peak_memory);
  Json links = Json::array();
  for (const auto& link : result.links) {
    links.push_back({{"name", link.name}, {"bytes", link.bytes.value}, {"busy_fraction", link.busy_fraction}});
  }
  const auto gap = plan.gap_fraction();
  Json json = {{"file", run.file},
               {"allocator", plan.allocator},
               {"objective", name_of(plan.goal.objective)},
               {"communication", name_of(plan.goal.communication)},
               {"schedule", isobar::text_of(plan.goal.schedule)},
               {"microbatches", plan.goal.microbatches},
               {"outcome", name_of(plan.outcome)},
               {"step_time_s", result.step_time.value},
               {"step_bound_s", result.step_bound.value},
               {"tokens_per_s", or_null(result.utilization.tokens_per_s)},
               {"mfu_fraction", or_null(result.utilization.mfu_fraction)},
               {"bubble_fraction", or_null(result.utilization.bubble_fraction)},
               {"objective_s", or_null(plan.objective)},
               {"objective_bound_s", or_null(plan.objective_bound)},
               {"gap_fraction", gap ? Json(*gap) : Json(nullptr)},
               {"peak_memory_bytes", peak.value}};
  if (result.interval) {
    json["step_interval_s"] = {result.interval->low.value, result.interval->high.value};
    json["interval_because"] = result.interval->because;
  }
  json["first_step_time_s"] = result.step_times.front().value;
  json["sites"] = sites_of(run, map);
  json["connections"] = connections_of(run, map);
  json["stages"] = stages_of(run, map);
  json["links"] = std::move(links);
  json["explanation"] =
      is_chain(plan) ? Json::parse(explanation_to_json(explain(plan, run.workload, run.cluster))) : Json(nullptr);
  json["timeline"] = timeline_of(run.simulated, numbers_in_file(plan));
  json["memory"] = memory_of(run, run.simulated);
  json["measured"] = run.measured != nullptr ? measured_of(run) : Json(nullptr);
  return json_line(json);
}

std::string report_to_json(const Result& first, const std::string& version, const std::vector<RunAndAnswers>& runs)
{
  Json network = Json::object();
  for (const auto& [option, value] : first.network) network[option] = value;
  Json json = {{"schema", "isobar-report/1"},
               {"isobar_version", version},
               {"simgrid_version", first.simgrid_version},
               {"network", std::move(network)},
               {"platform", json_of(first.inputs.platform)},
               {"workload", json_of(first.inputs.workload)},
               {"profile", first.inputs.profile ? json_of(*first.inputs.profile) : Json(nullptr)},
               {"runs", Json::array()}};
  for (const auto& run : runs) {
    auto answers = run.answers;
    std::stable_sort(answers.begin(), answers.end(),
                     [](const auto& a, const auto& b) { return best_of(a) < best_of(b); });
    Json object = Json::parse(run.run_json);
    object["what_ifs"] = Json::array();
    for (const auto& answer : answers) object["what_ifs"].push_back(json_of(answer));
    json["runs"].push_back(std::move(object));
  }
  return json_line(json);
}

std::string page_of(const PageParts& parts, const std::string& json)
{
  ensure(parts.script.find("</script") == std::string_view::npos, "the page's script does not end its element");
  ensure(parts.library.find("</script") == std::string_view::npos, "the library does not end its element");
  ensure(parts.style.find("</style") == std::string_view::npos, "the style does not end its element");
  ensure(parts.licence.find('<') == std::string_view::npos, "the licence is plain text");
  const std::string data = escaped(json);
  return filled(parts.frame, {{"STYLE", parts.style},
                              {"DATA", data},
                              {"LIBRARY", parts.library},
                              {"SCRIPT", parts.script},
                              {"LICENCE", parts.licence}});
}

}  // namespace isobar::results

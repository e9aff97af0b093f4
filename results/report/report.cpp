#include "results/report/report.hpp"

#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "results/explanation.hpp"
#include "results/report/site_map.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json)
{
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json or_null(const std::optional<Seconds>& time)
{
  return time ? Json(time->value) : Json(nullptr);
}

Json or_null(const std::optional<double>& number)
{
  return number ? Json(*number) : Json(nullptr);
}

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

/// Sites with all their devices, used or unused.
Json sites_of(const ReportedRun& run, const SiteMap& map)
{
  std::map<std::string, std::vector<std::size_t>> stages_of_device;  // as indices of the run's stages
  for (std::size_t i = 0; i < run.result.stages.size(); ++i) {
    stages_of_device[run.result.stages[i].device].push_back(i);
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
  const auto placed = placed_shards(plan);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const StageMetrics& metrics = run.result.stages.at(i);
    const Stage& stage = plan.stages[placed[i].stage];
    const std::size_t rank = placed[i].rank;
    const std::uint64_t microbatches = stage.replicas[placed[i].replica].microbatches;
    const Device& device = run.cluster.devices[map.device_of[rank]];
    stages.push_back({{"stage", placed[i].stage},
                      {"replica", placed[i].replica},
                      {"replicas", stage.replicas.size()},
                      {"microbatches", microbatches > 0 ? microbatches : plan.goal.microbatches},
                      {"device", metrics.device},
                      {"type", device.type},
                      {"site", map.site_of[map.device_of[rank]]},
                      {"first_layer", stage.first_layer},
                      {"last_layer", stage.last_layer},
                      {"first_layer_name", run.workload.layers[stage.first_layer].name},
                      {"last_layer_name", run.workload.layers[stage.last_layer].name},
                      {"speed_flops_per_s", device.speed_at(run.workload.dtype).value},
                      {"memory_bytes", device.memory.value},
                      {"peak_memory_bytes", metrics.peak_memory.value},
                      {"compute_s", metrics.compute.value},
                      {"send_s", metrics.send.value},
                      {"idle_s", metrics.idle.value},
                      {"own_link", load_of(map.own_links[rank], run.result.links)}});
  }
  return stages;
}

/// Instructions by column, which takes a third of the space of one object per instruction.
Json timeline_of(const RecordedStep& recorded)
{
  const std::array<const char*, 11> columns = {"rank",    "lane",  "opcode", "payload", "stage",       "microbatch",
                                               "begin_s", "end_s", "bytes",  "flops",   "memory_bytes"};
  Json events;
  for (const char* column : columns) events[column] = Json::array();
  for (const auto& event : recorded.events) {
    const Instruction& instruction = event.instruction;
    events["rank"].push_back(event.rank);
    events["lane"].push_back(recorded.lanes[event.rank][instruction.lane].name);
    events["opcode"].push_back(name_of(instruction.opcode));
    events["payload"].push_back(is_computation(instruction.opcode) ? Json(nullptr)
                                                                   : Json(name_of(instruction.payload)));
    events["stage"].push_back(instruction.stage);
    events["microbatch"].push_back(instruction.microbatch);
    events["begin_s"].push_back(event.begin.value);
    events["end_s"].push_back(event.end.value);
    events["bytes"].push_back(instruction.size.value);
    events["flops"].push_back(instruction.work.value);
    events["memory_bytes"].push_back(event.memory.value);
  }
  return {{"instructions", recorded.instructions}, {"events", std::move(events)}};
}

Json measured_of(const MeasuredStep& measured)
{
  Json json = {{"file", measured.file}, {"step", measured.step}, {"step_time_s", measured.time.value}};
  json["timeline"] = timeline_of(measured.recorded);
  return json;
}

Json json_of(const WhatIfAnswer& answer)
{
  Json json = {{"change", answer.what_if.text},
               {"factor", answer.what_if.factor},
               {"step_time_s", or_null(answer.kept)},
               {"planned_anew_step_time_s", or_null(answer.planned_anew)}};
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
  json["first_step_time_s"] = result.step_times.front().value;
  json["sites"] = sites_of(run, map);
  json["connections"] = connections_of(run, map);
  json["stages"] = stages_of(run, map);
  json["links"] = std::move(links);
  json["explanation"] =
      is_chain(plan) ? Json::parse(explanation_to_json(explain(plan, run.workload, run.cluster))) : Json(nullptr);
  json["timeline"] = timeline_of(run.simulated);
  json["measured"] = run.measured != nullptr ? measured_of(*run.measured) : Json(nullptr);
  return text_of(json);
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
  return text_of(json);
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

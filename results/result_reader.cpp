#include "core/base/file_kind.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan_file.hpp"
#include "core/text/document.hpp"
#include "results/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace isobar::results {

namespace {

/// The members of a list of objects, each read by `read`.
template <typename Value, typename Read>
std::vector<Value> read_objects(MappingReader& parent, const std::string& key, FaultList& faults, const Read& read)
{
  std::vector<Value> values;
  for (const auto& node : parent.required_sequence(key)) {
    MappingReader reader(node, fmt::format("{}[{}].", key, values.size()), faults);
    values.push_back(read(reader));
    reader.refuse_unknown();
  }
  return values;
}

/// Reads a member that is an object; a missing one is a fault.
template <typename Read>
void read_object(MappingReader& parent, const std::string& key, FaultList& faults, const Read& read)
{
  const DocumentNode* node = parent.required(key);
  if (node == nullptr) return;
  MappingReader reader(*node, parent.path_of(key) + ".", faults);
  read(reader);
  reader.refuse_unknown();
}

Fingerprint read_fingerprint(MappingReader& parent, const std::string& key, FaultList& faults)
{
  Fingerprint result;
  read_object(parent, key, faults, [&](MappingReader& reader) {
    result.name = reader.required_text("name");
    result.hash = reader.required_text("hash");
    if (key == "workload") result.set = read_settings(reader, faults);
  });
  return result;
}

std::vector<Seconds> read_step_times(MappingReader& reader, FaultList& faults)
{
  std::vector<Seconds> times;
  for (const auto& node : reader.required_sequence("step_times_s")) {
    DocumentNode member;
    member.kind = DocumentNode::Kind::Mapping;
    member.line = node.line;
    const std::string name = fmt::format("step_times_s[{}]", times.size());
    member.members.push_back({name, node});
    times.emplace_back(MappingReader(member, "", faults).required_number(name));
  }
  return times;
}

StageMetrics read_stage(MappingReader& reader)
{
  StageMetrics stage;
  stage.device = reader.required_text("device");
  stage.compute = Seconds(reader.required_number("compute_s"));
  stage.send = Seconds(reader.required_number("send_s"));
  stage.idle = Seconds(reader.required_number("idle_s"));
  stage.peak_memory = Bytes(reader.required_number("peak_memory_bytes"));
  return stage;
}

DeviceOverlap read_overlap(MappingReader& reader)
{
  DeviceOverlap overlap;
  overlap.device = reader.required_text("device");
  overlap.compute = Seconds(reader.required_number("compute_s"));
  overlap.communication = Seconds(reader.required_number("communication_s"));
  overlap.hidden = Seconds(reader.required_number("hidden_s"));
  reader.required_number("exposed_s");  // the difference
  return overlap;
}

LinkMetrics read_link(MappingReader& reader)
{
  LinkMetrics link;
  link.name = reader.required_text("name");
  link.bytes = Bytes(reader.required_number("bytes"));
  link.busy_fraction = reader.required_number("busy_fraction");
  return link;
}

ResultInputs read_inputs(MappingReader& reader, FaultList& faults)
{
  ResultInputs inputs;
  inputs.platform = read_fingerprint(reader, "platform", faults);
  inputs.devices = reader.optional_text("devices");
  inputs.workload = read_fingerprint(reader, "workload", faults);
  if (reader.has("profile")) inputs.profile = read_fingerprint(reader, "profile", faults);
  return inputs;
}

void check_stages(const Result& result, MappingReader& reader)
{
  const auto placed = placed_shards(result.plan);
  const auto devices = devices_of(result.plan);
  const bool same = std::equal(
      placed.begin(), placed.end(), result.stages.begin(), result.stages.end(),
      [&](const PlacedShard& replica, const StageMetrics& metrics) { return devices[replica.rank] == metrics.device; });
  if (!same) reader.add_fault("stages", "do not match the stages of the plan");
  if (result.step_times.empty()) {
    reader.add_fault("step_times_s", "is empty; a simulation has at least one step");
    return;
  }
  const Seconds total = std::accumulate(result.step_times.begin(), result.step_times.end(), Seconds(0));
  const double mean = total.value / static_cast<double>(result.step_times.size());
  if (std::abs(result.step_time.value - mean) > 1e-9 * mean) {
    reader.add_fault("step_time_s", fmt::format("{}; the mean of step_times_s is {}", result.step_time.value, mean));
  }
  constexpr double all_the_time = 1 + 1e-9;
  for (std::size_t i = 0; i < result.links.size(); ++i) {
    if (result.links[i].busy_fraction <= all_the_time) continue;
    reader.add_fault(fmt::format("links[{}].busy_fraction", i),
                     fmt::format("{}; no link is busy for longer than the step", result.links[i].busy_fraction));
  }
}

}  // namespace

Result result_from_json(const std::string& text, const std::string& name)
{
  require_file_kind(FileKind::Result, text, name);
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  Result result;
  reader.required_choice("schema", {"isobar-result/1"});
  result.step_time = Seconds(reader.required_number("step_time_s"));
  result.step_bound = Seconds(reader.required_number("step_bound_s"));
  result.interval = read_step_interval(reader, faults);
  result.utilization = {reader.optional_number("tokens_per_s"), reader.optional_number("mfu_fraction"),
                        reader.optional_number("bubble_fraction")};
  result.step_times = read_step_times(reader, faults);
  result.stages = read_objects<StageMetrics>(reader, "stages", faults, read_stage);
  if (reader.has("devices")) {
    result.overlaps = read_objects<DeviceOverlap>(reader, "devices", faults, read_overlap);
  }
  result.links = read_objects<LinkMetrics>(reader, "links", faults, read_link);
  result.compute = reader.optional_text("compute").value_or("");
  result.activities = reader.required_count("activities");
  if (reader.has("acting_devices")) result.acting_devices = reader.required_count("acting_devices");
  result.folding = reader.optional_text("folding").value_or("");
  read_object(reader, "network", faults, [&result](MappingReader& network) {
    for (const auto& option : network.keys()) result.network.emplace_back(option, network.required_text(option));
  });
  result.simgrid_version = reader.required_text("simgrid_version");
  reader.required("profile");  // read from `inputs`, which repeats it
  const DocumentNode* plan = reader.required("plan");
  read_object(reader, "inputs", faults, [&](MappingReader& inputs) { result.inputs = read_inputs(inputs, faults); });
  read_object(reader, "wall", faults,
              [&result](MappingReader& wall) { result.simulate_time = Seconds(wall.required_number("simulate_s")); });
  reader.refuse_unknown();
  faults.throw_if_any();
  result.plan = plan_from_document(*plan, name, "plan.");
  check_stages(result, reader);
  faults.throw_if_any();
  return result;
}

}  // namespace isobar::results

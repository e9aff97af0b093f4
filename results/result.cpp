#include "results/result.hpp"

#include "core/plan/placed_shards.hpp"
#include "core/text/json_text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Fingerprint& fingerprint)
{
  Json object = {{"name", fingerprint.name}, {"hash", fingerprint.hash}};
  if (!fingerprint.set.empty()) object["set"] = fingerprint.set;
  return object;
}

Json to_json(const ResultInputs& inputs)
{
  Json object = {{"platform", to_json(inputs.platform)}};
  if (inputs.devices) object["devices"] = *inputs.devices;
  object["workload"] = to_json(inputs.workload);
  if (inputs.profile) object["profile"] = to_json(*inputs.profile);
  return object;
}

}  // namespace

std::string result_to_json(const Result& result)
{
  Json stages = Json::array();
  for (const auto& stage : result.stages) {
    stages.push_back({{"device", stage.device},
                      {"compute_s", stage.compute.value},
                      {"send_s", stage.send.value},
                      {"idle_s", stage.idle.value},
                      {"peak_memory_bytes", stage.peak_memory.value}});
  }
  Json devices = Json::array();
  for (const auto& each : result.overlaps) {
    devices.push_back({{"device", each.device},
                       {"compute_s", each.compute.value},
                       {"communication_s", each.communication.value},
                       {"hidden_s", each.hidden.value},
                       {"exposed_s", each.exposed().value}});
  }
  Json links = Json::array();
  for (const auto& link : result.links) {
    links.push_back({{"name", link.name}, {"bytes", link.bytes.value}, {"busy_fraction", link.busy_fraction}});
  }
  Json steps = Json::array();
  for (const auto step : result.step_times) steps.push_back(step.value);
  Json network = Json::object();
  for (const auto& [option, value] : result.network) network[option] = value;
  Json document = {{"schema", "isobar-result/1"},
                   {"step_time_s", result.step_time.value},
                   {"step_bound_s", result.step_bound.value},
                   {"tokens_per_s", or_null(result.utilization.tokens_per_s)},
                   {"mfu_fraction", or_null(result.utilization.mfu_fraction)},
                   {"bubble_fraction", or_null(result.utilization.bubble_fraction)},
                   {"step_times_s", std::move(steps)},
                   {"stages", std::move(stages)},
                   {"links", std::move(links)},
                   {"compute", result.compute},
                   {"activities", result.activities},
                   {"network", std::move(network)},
                   {"simgrid_version", result.simgrid_version},
                   {"profile", result.inputs.profile ? to_json(*result.inputs.profile) : Json(nullptr)},
                   {"plan", Json::parse(lasting_plan_to_json(result.plan))},
                   {"inputs", to_json(result.inputs)},
                   {"wall", {{"simulate_s", result.simulate_time.value}}}};
  if (result.interval) {
    document["step_interval_s"] = {result.interval->low.value, result.interval->high.value};
    document["interval_because"] = result.interval->because;
  }
  if (!devices.empty()) document["devices"] = std::move(devices);
  if (result.acting_devices) document["acting_devices"] = *result.acting_devices;
  if (!result.folding.empty()) document["folding"] = result.folding;
  return json_lines(document);
}

void StageMeter::record(const TraceEvent& event)
{
  Rank& rank = ranks_[event.rank];
  Sums& sums = rank.stages[event.instruction.stage];
  const Seconds duration = event.end - event.begin;
  const Opcode opcode = event.instruction.opcode;
  if (is_on_device(event.instruction)) sums.compute += duration;
  if (opcode == Opcode::Send || is_collective(opcode)) sums.send += duration;
  rank.peak_memory = std::max(rank.peak_memory, event.memory);
}

std::vector<StageMetrics> StageMeter::stages(const Plan& plan, std::uint64_t steps, Seconds step_time) const
{
  const auto count = static_cast<double>(steps);
  const auto devices = devices_of(plan);
  std::vector<StageMetrics> stages;
  for (const auto& placed : placed_shards(plan)) {
    const Rank& rank = ranks_[acts_for_.empty() ? placed.rank : acts_for_[placed.rank]];
    Seconds compute;
    for (const auto& [stage, sums] : rank.stages) compute += sums.compute / count;
    const auto found = rank.stages.find(static_cast<std::uint32_t>(placed.stage));
    const Sums own = found == rank.stages.end() ? Sums{} : found->second;
    stages.push_back({devices[placed.rank], own.compute / count, own.send / count,
                      std::max(Seconds(0), step_time - compute), rank.peak_memory});
  }
  return stages;
}

}  // namespace isobar::results

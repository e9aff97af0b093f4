#include "results/result.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Fingerprint& fingerprint)
{
  return {{"name", fingerprint.name}, {"hash", fingerprint.hash}};
}

Json or_null(const std::optional<double>& number)
{
  return number ? Json(*number) : Json(nullptr);
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
  Json links = Json::array();
  for (const auto& link : result.links) {
    links.push_back({{"name", link.name}, {"bytes", link.bytes.value}, {"busy_fraction", link.busy_fraction}});
  }
  Json steps = Json::array();
  for (const auto step : result.step_times) steps.push_back(step.value);
  Json network = Json::object();
  for (const auto& [option, value] : result.network) network[option] = value;
  const Json document = {{"schema", "isobar-result/1"},
                         {"step_time_s", result.step_time.value},
                         {"step_bound_s", result.step_bound.value},
                         {"tokens_per_s", or_null(result.utilization.tokens_per_s)},
                         {"mfu_fraction", or_null(result.utilization.mfu_fraction)},
                         {"bubble_fraction", or_null(result.utilization.bubble_fraction)},
                         {"step_times_s", std::move(steps)},
                         {"stages", std::move(stages)},
                         {"links", std::move(links)},
                         {"activities", result.activities},
                         {"network", std::move(network)},
                         {"simgrid_version", result.simgrid_version},
                         {"profile", result.inputs.profile ? to_json(*result.inputs.profile) : Json(nullptr)},
                         {"plan", Json::parse(lasting_plan_to_json(result.plan))},
                         {"inputs", to_json(result.inputs)},
                         {"wall", {{"simulate_s", result.simulate_time.value}}}};
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void StageMeter::record(const TraceEvent& event)
{
  Sums& sums = sums_[event.rank];
  const Seconds duration = event.end - event.begin;
  const Lane lane = event.instruction.lane;
  const bool is_all_reduce = event.instruction.opcode == Opcode::AllReduce;
  if (lane == Lane::Compute && !is_all_reduce) sums.compute += duration;
  if (lane == Lane::SendActivation || lane == Lane::SendGradient || is_all_reduce) sums.send += duration;
  sums.peak_memory = std::max(sums.peak_memory, event.memory);
}

std::vector<StageMetrics> StageMeter::stages(const std::vector<std::string>& devices, std::uint64_t steps,
                                             Seconds step_time) const
{
  std::vector<StageMetrics> stages;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Seconds compute = sums_[rank].compute / static_cast<double>(steps);
    stages.push_back({devices[rank], compute, sums_[rank].send / static_cast<double>(steps),
                      std::max(Seconds(0), step_time - compute), sums_[rank].peak_memory});
  }
  return stages;
}

}  // namespace isobar::results

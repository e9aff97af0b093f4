#include "results/mix_result.hpp"

#include "core/names.hpp"
#include "core/text/json_text.hpp"

#include <nlohmann/json.hpp>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

constexpr NameTable<Binding, 3> binding_names = {
    {{Binding::Device, "device"}, {Binding::Link, "link"}, {Binding::Job, "job"}}};

Json json_of(const MixJobMetrics& job)
{
  Json memory = Json::object();
  for (const auto& [device, bytes] : job.peak_memory) memory[device] = bytes.value;
  return {{"name", job.name},
          {"steps_per_round", job.steps_per_round},
          {"steps_done", job.steps_done},
          {"step_time_s", job.step_time.value},
          {"solo_step_time_s", job.solo_step_time.value},
          {"normalised_rate", job.normalised_rate},
          {"longest_wait_s", job.longest_wait.value},
          {"peak_memory_bytes", memory}};
}

Json json_of(const MixDeviceMetrics& device)
{
  return {{"name", device.name},
          {"compute_s", device.compute.value},
          {"waiting_s", device.waiting.value},
          {"busy_fraction", device.busy_fraction},
          {"peak_memory_bytes", device.peak_memory.value}};
}

Json json_of(const LinkMetrics& link)
{
  return {{"name", link.name}, {"bytes", link.bytes.value}, {"busy_fraction", link.busy_fraction}};
}

template <typename Item>
Json list_of(const std::vector<Item>& items)
{
  Json list = Json::array();
  for (const auto& item : items) list.push_back(json_of(item));
  return list;
}

}  // namespace

std::string_view name_of(Binding binding)
{
  return name_in(binding_names, binding);
}

std::string mix_result_to_json(const MixResult& result)
{
  Json json;
  json["schema"] = "isobar-mix-result/1";
  json["rounds"] = result.round_times.size();
  json["round_time_s"] = result.round_time.value;
  json["round_times_s"] = Json::array();
  for (const Seconds time : result.round_times) json["round_times_s"].push_back(time.value);
  json["total_s"] = result.total.value;
  json["serial_s"] = result.serial.value;
  json["speedup"] = result.serial / result.round_time;
  json["bound_s"] = result.bound.time.value;
  json["binds"] = {{"kind", name_of(result.bound.kind)}, {"name", result.bound.name}};
  json["gap_fraction"] = 1 - result.bound.time / result.round_time;
  json["jobs"] = list_of(result.jobs);
  json["devices"] = list_of(result.devices);
  json["links"] = list_of(result.links);
  json["activities"] = result.activities;
  json["network"] = Json::object();
  for (const auto& [option, value] : result.network) json["network"][option] = value;
  json["simgrid_version"] = result.simgrid_version;
  json["mix"] = Json::parse(mix_to_json(result.mix));
  json["inputs"]["platform"] = {{"name", result.platform.name}, {"hash", result.platform.hash}};
  json["inputs"]["devices"] = result.devices_file ? Json(*result.devices_file) : Json(nullptr);
  json["inputs"]["profile"] = nullptr;
  if (result.profile) json["inputs"]["profile"] = {{"name", result.profile->name}, {"hash", result.profile->hash}};
  json["wall"] = {{"simulate_s", result.simulate_time.value}};
  return json_lines(json);
}

}  // namespace isobar::results

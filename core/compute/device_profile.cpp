#include "core/compute/device_profile.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

namespace isobar {

namespace {

constexpr auto schema = "isobar-profile/1";

// Beyond anything that can be measured: larger values are mistakes in units. Products of these stay finite.
constexpr double longest_s = 1e6;
constexpr double fastest = 1e30;
constexpr double most_bytes = 1e18;

/// A required number from `least` to `most`.
double number_up_to(double most, MappingReader& reader, const std::string& key, double least = 0)
{
  const double number = reader.required_number(key, least);
  if (number > most) reader.add_fault(key, fmt::format("{:.6g} is out of range; the largest is {:.0e}", number, most));
  return number;
}

LayerProfile read_layer(MappingReader& entry)
{
  LayerProfile layer;
  layer.name = entry.required_text("name");
  layer.forward = Seconds(number_up_to(longest_s, entry, "forward_s"));
  layer.backward = Seconds(number_up_to(longest_s, entry, "backward_s"));
  layer.update = Seconds(number_up_to(longest_s, entry, "update_s"));
  layer.spread_fraction = entry.required_number("spread_fraction");
  layer.activations = Bytes(number_up_to(most_bytes, entry, "activations_bytes"));
  if (entry.optional("workspace_bytes") != nullptr) {
    layer.workspace = Bytes(number_up_to(most_bytes, entry, "workspace_bytes"));
  }
  if (const auto peak = entry.optional_number("peak_memory_bytes")) layer.peak = Bytes(*peak);
  entry.refuse_unknown();
  return layer;
}

using Json = nlohmann::ordered_json;

Json json_of(const CopyProfile& copy)
{
  return {{"latency_s", copy.latency.value}, {"bandwidth_bytes_per_s", copy.bandwidth.value}};
}

Json json_of(const MachineProfile& machine)
{
  Json json = {{"processor", machine.processor},
               {"memory_bytes", machine.memory.value},
               {"update_flops_per_s", machine.update_speed.value},
               {"busy_update_flops_per_s", machine.busy_update_speed.value},
               {"copy_in", json_of(machine.in)},
               {"copy_out", json_of(machine.out)}};
  if (machine.disk) {
    json["disk"] = {{"capacity_bytes", machine.disk->capacity.value},
                    {"read_bytes_per_s", machine.disk->read.value},
                    {"write_bytes_per_s", machine.disk->write.value},
                    {"direct", machine.disk->is_direct}};
  }
  return json;
}

CopyProfile read_copy(MappingReader& entry)
{
  CopyProfile copy;
  copy.latency = Seconds(number_up_to(longest_s, entry, "latency_s"));
  copy.bandwidth = BytesPerSecond(number_up_to(fastest, entry, "bandwidth_bytes_per_s", 1));
  entry.refuse_unknown();
  return copy;
}

DiskProfile read_disk(MappingReader& entry)
{
  DiskProfile disk;
  disk.capacity = Bytes(number_up_to(most_bytes, entry, "capacity_bytes"));
  disk.read = BytesPerSecond(number_up_to(fastest, entry, "read_bytes_per_s", 1));
  disk.write = BytesPerSecond(number_up_to(fastest, entry, "write_bytes_per_s", 1));
  disk.is_direct = entry.optional_boolean("direct").value_or(false);
  entry.refuse_unknown();
  return disk;
}

MachineProfile read_machine(MappingReader& entry, FaultList& faults)
{
  // Reads a member that is a mapping itself.
  const auto read_member = [&](const DocumentNode* node, const std::string& key, auto read, auto& into) {
    if (node == nullptr) return;
    MappingReader member(*node, entry.path_of(key) + ".", faults);
    into = read(member);
  };
  MachineProfile machine;
  machine.processor = entry.required_text("processor");
  machine.memory = Bytes(number_up_to(most_bytes, entry, "memory_bytes", 1));
  machine.update_speed = FlopsPerSecond(number_up_to(fastest, entry, "update_flops_per_s", 1));
  machine.busy_update_speed = FlopsPerSecond(number_up_to(fastest, entry, "busy_update_flops_per_s", 1));
  read_member(entry.required("copy_in"), "copy_in", read_copy, machine.in);
  read_member(entry.required("copy_out"), "copy_out", read_copy, machine.out);
  read_member(entry.optional("disk"), "disk", read_disk, machine.disk);
  entry.refuse_unknown();
  return machine;
}

/// The efficiencies of products, ascending by work.
std::vector<spmd::DeviceRates::Efficiency> read_efficiencies(MappingReader& rates, FaultList& faults)
{
  std::vector<spmd::DeviceRates::Efficiency> entries;
  for (const auto& node : rates.required_sequence("efficiency")) {
    const std::string path = rates.path_of(fmt::format("efficiency[{}].", entries.size()));
    MappingReader entry(node, path, faults);
    spmd::DeviceRates::Efficiency efficiency;
    efficiency.work = Flops(number_up_to(fastest, entry, "work_flop"));
    efficiency.fraction = entry.required_number("fraction");
    const auto* before = entries.empty() ? nullptr : &entries.back();
    // More work takes no less time.
    const double most = before == nullptr ? 1 : before->fraction * (efficiency.work / before->work);
    if (!(efficiency.fraction > 0 && efficiency.fraction <= 1)) {
      entry.add_fault("fraction", fmt::format("{:.6g} is out of range; write a part of flops_per_s, above 0 and at "
                                              "most 1",
                                              efficiency.fraction));
    } else if (before != nullptr && efficiency.work <= before->work) {
      entry.add_fault("work_flop", fmt::format("{:.6g} is not above {:.6g}, of the entry before; list them by work",
                                               efficiency.work.value, before->work.value));
    } else if (efficiency.fraction > most) {
      entry.add_fault("fraction",
                      fmt::format("{:.6g}, with which {:.6g} FLOP take less time than the {:.6g} of the entry before; "
                                  "write at most {:.6g}",
                                  efficiency.fraction, efficiency.work.value, before->work.value, most));
    }
    entry.refuse_unknown();
    entries.push_back(efficiency);
  }
  return entries;
}

std::map<std::string, spmd::DeviceRates> read_operator_rates(MappingReader& types, FaultList& faults)
{
  std::map<std::string, spmd::DeviceRates> result;
  for (const auto& type : types.keys()) {
    MappingReader entry(*types.optional(type), types.path_of(type) + ".", faults);
    spmd::DeviceRates& rates = result[type];
    rates.flops = FlopsPerSecond(number_up_to(fastest, entry, "flops_per_s", 1));
    if (entry.optional("memory_bandwidth_bytes_per_s") != nullptr) {
      rates.memory_bandwidth = BytesPerSecond(number_up_to(fastest, entry, "memory_bandwidth_bytes_per_s", 1));
    }
    if (entry.optional("launch_s") != nullptr) rates.launch = Seconds(number_up_to(longest_s, entry, "launch_s"));
    if (entry.optional("efficiency") != nullptr) rates.efficiency = read_efficiencies(entry, faults);
    entry.refuse_unknown();
  }
  return result;
}

Json json_of(const spmd::DeviceRates& rates)
{
  Json json = {{"flops_per_s", rates.flops.value}};
  if (rates.memory_bandwidth) json["memory_bandwidth_bytes_per_s"] = rates.memory_bandwidth->value;
  if (rates.launch > Seconds(0)) json["launch_s"] = rates.launch.value;
  for (const auto& [work, fraction] : rates.efficiency) {
    json["efficiency"].push_back({{"work_flop", work.value}, {"fraction", fraction}});
  }
  return json;
}

/// The first difference between the profile and the workload; none if they match.
std::optional<std::string> mismatch(const DeviceProfile& profile, const Workload& workload)
{
  if (profile.dtype != workload.dtype) {
    return fmt::format("dtype: measured in {}; the workload is in {}", name_of(profile.dtype), name_of(workload.dtype));
  }
  if (profile.micro_batch != workload.micro_batch || profile.sequence != workload.sequence) {
    return fmt::format("micro_batch: measured with {} samples of {}; the workload has {} of {}", profile.micro_batch,
                       profile.sequence, workload.micro_batch, workload.sequence);
  }
  if (profile.layers.size() != workload.layers.size()) {
    return fmt::format("layers: {} were measured; the workload has {}", profile.layers.size(), workload.layers.size());
  }
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    if (profile.layers[i].name == workload.layers[i].name) continue;
    return fmt::format("layers[{}].name: {} was measured; the workload has {}", i, in_quotes(profile.layers[i].name),
                       in_quotes(workload.layers[i].name));
  }
  return std::nullopt;
}

}  // namespace

std::string profile_to_json(const DeviceProfile& profile)
{
  Json rates;
  for (const auto& [type, its] : profile.operator_rates) rates[type] = json_of(its);
  const auto text_of_document = [&](Json document) {
    if (!rates.empty()) document["operator_rates"] = std::move(rates);
    return json_lines(document);
  };
  if (!profile.has_layers()) {
    Json alone;
    alone["schema"] = schema;
    return text_of_document(std::move(alone));
  }
  Json layers = Json::array();
  for (const auto& layer : profile.layers) {
    layers.push_back({{"name", layer.name},
                      {"forward_s", layer.forward.value},
                      {"backward_s", layer.backward.value},
                      {"update_s", layer.update.value},
                      {"spread_fraction", layer.spread_fraction},
                      {"activations_bytes", layer.activations.value}});
    if (layer.workspace) layers.back()["workspace_bytes"] = layer.workspace->value;
    if (layer.peak) layers.back()["peak_memory_bytes"] = layer.peak->value;
  }
  Json document = {{"schema", schema},
                   {"device", profile.device},
                   {"speed_flops", profile.speed.value},
                   {"memory_bytes", profile.memory.value},
                   {"dtype", name_of(profile.dtype)},
                   {"micro_batch", profile.micro_batch},
                   {"sequence", profile.sequence}};
  document["layers"] = std::move(layers);
  if (profile.machine) document["machine"] = json_of(*profile.machine);
  return text_of_document(std::move(document));
}

DeviceProfile read_profile(const std::filesystem::path& file)
{
  return profile_from_json(read_file(file), file.string());
}

DeviceProfile profile_from_json(const std::string& text, const std::string& name)
{
  const auto document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  reader.required_choice("schema", {schema});
  faults.throw_if_any();
  DeviceProfile profile;
  if (const auto* node = reader.optional("operator_rates")) {
    MappingReader types(*node, "operator_rates.", faults);
    profile.operator_rates = read_operator_rates(types, faults);
    if (node->kind == DocumentNode::Kind::Mapping && node->members.empty()) {
      reader.add_fault("operator_rates", "is empty; write the rates of a type of devices");
    }
    const bool has_rates_alone = reader.keys().size() == 2;
    if (has_rates_alone) {
      faults.throw_if_any();
      return profile;
    }
  }
  profile.device = reader.required_text("device");
  profile.speed = FlopsPerSecond(number_up_to(fastest, reader, "speed_flops"));
  profile.memory = Bytes(number_up_to(most_bytes, reader, "memory_bytes"));
  profile.dtype = dtype_from_name(reader.required_choice("dtype", dtype_names())).value_or(DType::Float32);
  profile.micro_batch = reader.required_count("micro_batch", 1);
  profile.sequence = reader.required_count("sequence", 1);
  for (const auto& node : reader.required_sequence("layers")) {
    MappingReader entry(node, fmt::format("layers[{}].", profile.layers.size()), faults);
    profile.layers.push_back(read_layer(entry));
  }
  if (const auto* node = reader.optional("machine")) {
    MappingReader entry(*node, "machine.", faults);
    profile.machine = read_machine(entry, faults);
  }
  if (faults.empty() && profile.speed.value <= 0) reader.add_fault("speed_flops", "is 0; write the measured speed");
  reader.refuse_unknown();
  faults.throw_if_any();
  return profile;
}

namespace {

/// Refuses a time that only a wrong unit explains: under a millionth of that of the layer's work at the profile's
/// speed.
void require_plausible(Seconds measured, Flops work, FlopsPerSecond speed, const std::string& place)
{
  const Seconds least = work / speed / most_gain_of_type;
  if (measured <= Seconds(0) || measured >= least) return;
  throw InputError(place,
                   fmt::format("{:.6g} s is under a millionth of the {:.6g} s that the profiles' speed_flops and "
                               "the other profile give; check the units of both",
                               measured.value, (work / speed).value));
}

}  // namespace

void add_profile(const DeviceProfile& profile, const std::string& file, const std::string& type, Workload& workload)
{
  if (!profile.has_layers()) throw InputError(file, "has rates of operators alone; give one such profile alone");
  if (const auto fault = mismatch(profile, workload)) throw InputError(file, *fault);
  std::vector<LayerTimes> own;
  std::vector<LayerTimes> usual;
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const Layer& layer = workload.layers[i];
    const LayerProfile& measured = profile.layers[i];
    const auto require = [&](Seconds time, Flops work, const char* key) {
      require_plausible(time, work, profile.speed, fmt::format("{}: layers[{}].{}", file, i, key));
    };
    require(measured.forward, layer.forward, "forward_s");
    require(measured.backward, layer.backward, "backward_s");
    require(measured.update, update_work(workload, layer), "update_s");
    const double weights = layer.backward > Flops(0) ? layer.backward_weight / layer.backward : 0;
    own.push_back({{measured.forward, measured.backward, weights * measured.backward}, measured.update});
    usual.push_back(
        {{layer.forward / profile.speed, layer.backward / profile.speed, layer.backward_weight / profile.speed},
         update_work(workload, layer) / profile.speed});
    if (measured.workspace) workload.workspace = std::max(workload.workspace, *measured.workspace);
  }
  set_times(workload, type, std::move(own), usual);
}

void apply_profile(const DeviceProfile& profile, const std::string& file, Workload& workload)
{
  const auto* sizes = std::get_if<spmd::MoeSizes>(&workload.model);
  const bool has_operators = sizes != nullptr && sizes->by_operator;
  if (has_operators) workload.operator_rates = profile.operator_rates;
  if (!profile.has_layers()) {
    if (has_operators) return;
    throw InputError(file, fmt::format("has rates of operators alone, and the layers of workload {} are not operators; "
                                       "write unit: operator in that of a moe, or measure its layers",
                                       shown(workload.name)));
  }
  if (const auto fault = mismatch(profile, workload)) throw InputError(file, *fault);
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    Layer& layer = workload.layers[i];
    const Flops counted = layer.backward;
    layer.forward = profile.layers[i].forward * profile.speed;
    layer.backward = profile.layers[i].backward * profile.speed;
    layer.backward_weight =
        counted > Flops(0) ? layer.backward_weight / counted * layer.backward : default_backward_weight(layer);
    layer.update = profile.layers[i].update * profile.speed;
    layer.experts.reset();  // the times are of all of them
    if (const auto& workspace = profile.layers[i].workspace) {
      if (layer.split && layer.activations > Bytes(0))
        layer.split->activations *= profile.layers[i].activations / layer.activations;
      layer.activations = profile.layers[i].activations;
      layer.workspace = *workspace;
      workload.workspace = std::max(workload.workspace, *workspace);
    }
  }
}

}  // namespace isobar

#include "sim/generate/machine_file.hpp"

#include "core/base/files.hpp"
#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/text/quantity_text.hpp"
#include "sim/generate/device_groups.hpp"
#include "sim/generate/generator_options.hpp"
#include "sim/generate/platform_generator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <stdexcept>

namespace isobar::sim {

namespace {

constexpr std::string_view count_prefix = "count_";

/// A quantity above 0.
template <typename Quantity>
std::optional<Quantity> optional_quantity(MappingReader& mapping, const std::string& key,
                                          Quantity (*from_text)(std::string_view))
{
  const auto text = mapping.optional_text(key);
  if (!text) return std::nullopt;
  try {
    const Quantity quantity = from_text(*text);
    if (quantity > Quantity(0)) return quantity;
    mapping.add_fault(key, fmt::format("{} is 0; write more", in_quotes(*text)));
  } catch (const std::invalid_argument& fault) {
    mapping.add_fault(key, fault.what());
  }
  return std::nullopt;
}

/// The value of the first of `keys` that the mapping has.
std::optional<BytesPerSecond> optional_bandwidth(MappingReader& mapping, const std::vector<std::string>& keys)
{
  std::optional<BytesPerSecond> first;
  for (const auto& key : keys) {
    const auto bandwidth = optional_quantity(mapping, key, bandwidth_from_text);
    if (!first) first = bandwidth;
  }
  return first;
}

/// A bandwidth of links: the measured one if the mapping has both.
std::optional<LinkBandwidth> optional_link(MappingReader& mapping, const std::vector<std::string>& nominal_keys)
{
  const auto measured = optional_bandwidth(mapping, {"measured_send_recv"});
  const auto nominal = optional_bandwidth(mapping, nominal_keys);
  if (measured) return LinkBandwidth{*measured, true};
  if (nominal) return LinkBandwidth{*nominal, false};
  return std::nullopt;
}

/// Calls `read` with the mapping of a key, if there is one.
template <typename Read>
void read_optional_mapping(MappingReader& parent, const std::string& key, FaultList& faults, Read read)
{
  const DocumentNode* const node = parent.optional(key);
  if (node == nullptr) return;
  MappingReader mapping(*node, parent.path_of(key) + ".", faults);
  if (node->kind != DocumentNode::Kind::Mapping) return;
  read(mapping);
  mapping.refuse_unknown();
}

/// What a file says of the links of a node before its other keys are known.
struct SaidInside {
  std::optional<Topology> topology;
  std::optional<LinkBandwidth> bandwidth;
  bool is_per_pair = false;  ///< else per GPU
  std::optional<Seconds> latency;
};

void read_inside(MappingReader& inside, SaidInside& said)
{
  if (const auto name = inside.optional_choice("topology", topology_names())) {
    const auto& names = topology_names();
    said.topology = static_cast<Topology>(std::find(names.begin(), names.end(), *name) - names.begin());
  }
  said.is_per_pair = inside.has("bandwidth_per_pair") || inside.has("measured_send_recv");
  said.bandwidth = optional_link(inside, {"bandwidth_per_pair", "bandwidth_per_gpu"});
  if (!said.is_per_pair && !inside.has("bandwidth_per_gpu")) {
    inside.add_fault("bandwidth_per_gpu",
                     "missing; write it, bandwidth_per_pair or measured_send_recv, such as "
                     "\"300 GB/s\"");
  }
  said.latency = optional_quantity(inside, "latency", seconds_from_text);
}

/// What a file says of the NICs of a node.
struct SaidOutside {
  std::optional<std::size_t> nics;
  std::optional<LinkBandwidth> bandwidth;
  std::optional<Seconds> latency;
};

void read_outside(MappingReader& outside, SaidOutside& said)
{
  said.nics = outside.optional_count("nics_per_node", 1, most_gpus_of_node);
  said.bandwidth = optional_link(outside, {"bandwidth_per_nic", "nic_bandwidth"});
  if (!outside.has("bandwidth_per_nic") && !outside.has("nic_bandwidth") && !outside.has("measured_send_recv")) {
    outside.add_fault("bandwidth_per_nic", "missing; write it or measured_send_recv, such as \"25 GB/s\"");
  }
  said.latency = optional_quantity(outside, "latency", seconds_from_text);
}

/// NVLink is on modules (SXM) and superchips; other types are cards.
Topology usual_topology(const std::string& device)
{
  const auto& type = device_type(device);
  return type.inside_bandwidth > plain_inside_bandwidth ? Topology::Switch : Topology::Pcie;
}

/// Reads machine files.
class MachineReader {
 public:
  MachineReader(const std::string& file, FaultList& faults)
      : root_(parse_yaml(read_file(file), file)), mapping_(root_, "", faults), faults_(faults)
  {
  }

  void read(MachineFile& machine)
  {
    if (root_.kind != DocumentNode::Kind::Mapping) return;
    for (const char* key : {"name", "note", "source"}) mapping_.optional_text(key);
    read_unknown(machine);
    read_optional_mapping(mapping_, "inside", faults_, [&](MappingReader& inside) { read_inside(inside, inside_); });
    read_optional_mapping(mapping_, "outside", faults_,
                          [&](MappingReader& outside) { read_outside(outside, outside_); });
    mapping_.has("node_groups") ? read_groups(machine) : read_only_group(machine);
    mapping_.refuse_unknown();
  }

  /// Adds a fault for each group whose links are missing. Call once its counts are final.
  void require_links(const MachineFile& machine)
  {
    const bool has_network = is_several_nodes(machine);
    for (std::size_t i = 0; i < machine.groups.size(); ++i) {
      const auto& group = machine.groups[i];
      if (group.gpus_per_node > 1 && !group.inside) {
        faults_.add(lines_[i], paths_[i] + "inside",
                    fmt::format("missing; write how the {} GPUs of a node are joined, such as {{topology: switch, "
                                "bandwidth_per_gpu: 300 GB/s}}",
                                group.gpus_per_node));
      }
      if (has_network && !group.outside) {
        faults_.add(lines_[i], paths_[i] + "outside",
                    "missing; write the NICs of a node, such as {nics_per_node: 8, bandwidth_per_nic: 25 GB/s}");
      }
    }
  }

 private:
  static bool is_several_nodes(const MachineFile& machine)
  {
    std::size_t nodes = 0;
    for (const auto& group : machine.groups) nodes += group.count;
    return nodes > 1;
  }

  void read_unknown(MachineFile& machine)
  {
    const DocumentNode* const node = mapping_.optional("unknown");
    if (node == nullptr) return;
    std::vector<std::string> words;
    if (node->kind == DocumentNode::Kind::Scalar) words.push_back(node->scalar);
    for (const auto& item : node->items) words.push_back(item.scalar);
    const bool is_list = std::none_of(words.begin(), words.end(), [](const auto& word) { return word.empty(); });
    if (node->kind == DocumentNode::Kind::Mapping || words.empty() || !is_list) {
      mapping_.add_fault("unknown", "is not a list of words; write one, such as [latencies, clocks]");
      return;
    }
    machine.notes.push_back(fmt::format("not known: {}", fmt::join(words, ", ")));
  }

  void read_only_group(MachineFile& machine)
  {
    const auto nodes = mapping_.required_count("nodes", 1, most_devices);
    append(machine, mapping_, nodes, inside_, outside_);
  }

  void read_groups(MachineFile& machine)
  {
    for (const char* key : {"nodes", "device"}) {
      if (mapping_.optional(key) != nullptr) {
        mapping_.add_fault(key, "has no effect beside node_groups; leave it out");
      }
    }
    const auto gpus = mapping_.optional_count("gpus_per_node", 1, most_gpus_of_node);
    const auto& items = mapping_.required_sequence("node_groups");
    if (items.empty()) mapping_.add_fault("node_groups", "is empty; write at least one group");
    for (std::size_t i = 0; i < items.size(); ++i) {
      MappingReader group(items[i], fmt::format("node_groups[{}].", i), faults_);
      if (items[i].kind != DocumentNode::Kind::Mapping) continue;
      for (const char* key : {"name", "note", "source"}) group.optional_text(key);
      SaidInside inside = inside_;
      SaidOutside outside = outside_;
      read_optional_mapping(group, "inside", faults_, [&](MappingReader& own) { read_inside(own, inside = {}); });
      read_optional_mapping(group, "outside", faults_, [&](MappingReader& own) { read_outside(own, outside = {}); });
      read_links_of_group(group, inside, outside);
      append(machine, group, group.required_count("count", 1, most_devices), inside, outside, gpus);
      group.refuse_unknown();
    }
  }

  /// The keys of a group that say as much as mappings `inside` and `outside` of its own.
  static void read_links_of_group(MappingReader& group, SaidInside& inside, SaidOutside& outside)
  {
    if (const auto bandwidth = optional_bandwidth(group, {"inside_bandwidth_per_gpu"})) {
      inside.bandwidth = LinkBandwidth{*bandwidth, false};
      inside.is_per_pair = false;
    }
    if (const auto bandwidth = optional_bandwidth(group, {"nic_bandwidth"})) {
      outside.bandwidth = LinkBandwidth{*bandwidth, false};
    }
    if (const auto nics = group.optional_count("nics_per_node", 1, most_gpus_of_node)) outside.nics = nics;
  }

  void append(MachineFile& machine, MappingReader& mapping, std::size_t count, const SaidInside& inside,
              const SaidOutside& outside, std::optional<std::size_t> usual_gpus = {})
  {
    NodeGroupOfMachine group;
    group.count = count;
    group.gpus_per_node = usual_gpus && !mapping.has("gpus_per_node")
                              ? *usual_gpus
                              : mapping.required_count("gpus_per_node", 1, most_gpus_of_node);
    group.device = mapping.required_text("device");
    bool has_type = false;
    try {
      if (!group.device.empty()) require_device_type(group.device), has_type = true;
    } catch (const std::invalid_argument& fault) {
      mapping.add_fault("device", fault.what());
    }
    if (has_type && inside.bandwidth) group.inside = inside_of(group, inside);
    if (outside.bandwidth) group.outside = {outside.nics.value_or(1), *outside.bandwidth, outside.latency};
    machine.groups.push_back(std::move(group));
    lines_.push_back(mapping.line());
    paths_.push_back(mapping.path_of(""));
  }

  /// A mesh's bandwidth per GPU is that of its links together.
  static InsideOfNode inside_of(const NodeGroupOfMachine& group, const SaidInside& said)
  {
    InsideOfNode inside{said.topology.value_or(usual_topology(group.device)), *said.bandwidth, said.latency};
    if (inside.topology == Topology::Mesh && !said.is_per_pair && group.gpus_per_node > 1) {
      inside.bandwidth.value = inside.bandwidth.value / static_cast<double>(group.gpus_per_node - 1);
    }
    return inside;
  }

  const DocumentNode root_;
  MappingReader mapping_;
  FaultList& faults_;
  SaidInside inside_;
  SaidOutside outside_;
  std::vector<int> lines_;          // of the groups
  std::vector<std::string> paths_;  // of their keys
};

/// Replaces counts of a machine.
class Overrides {
 public:
  Overrides(MachineFile& machine, const std::string& place) : machine_(machine), place_(place) {}

  void apply(const std::string& key, const std::string& value)
  {
    if (!keys_.insert(key).second) refuse(key, "is given twice; give it once");
    if (key == "nodes") {
      if (machine_.groups.size() > 1) {
        refuse(key, fmt::format("the machine has {} groups of nodes; write count_DEVICE for one of them",
                                machine_.groups.size()));
      }
      machine_.groups.front().count = count_of(key, value, 1, most_devices);
    } else if (key == "gpus_per_node") {
      const std::size_t gpus = count_of(key, value, 1, most_gpus_of_node);
      for (auto& group : machine_.groups) group.gpus_per_node = gpus;
    } else if (key.starts_with(count_prefix)) {
      group_of(key).count = count_of(key, value, 0, most_devices);
    } else {
      refuse(key, fmt::format("unknown; write nodes, gpus_per_node or {}", fmt::join(count_keys(), " or ")));
    }
  }

 private:
  std::vector<std::string> count_keys() const
  {
    std::vector<std::string> keys;
    for (const auto& group : machine_.groups) {
      const std::string key = std::string(count_prefix) + group.device;
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
    return keys;
  }

  NodeGroupOfMachine& group_of(const std::string& key)
  {
    const auto device = key.substr(count_prefix.size());
    const auto is_named = [&](const NodeGroupOfMachine& group) { return group.device == device; };
    auto& groups = machine_.groups;
    const auto found = std::find_if(groups.begin(), groups.end(), is_named);
    if (found == groups.end()) {
      refuse(key, fmt::format("the machine has no nodes of {}; write {}", in_quotes(device),
                              fmt::join(count_keys(), " or ")));
    }
    if (std::any_of(found + 1, groups.end(), is_named)) {
      refuse(key, fmt::format("several groups of nodes have {}; write the counts in the file", in_quotes(device)));
    }
    return *found;
  }

  std::size_t count_of(const std::string& key, const std::string& value, std::size_t lowest, std::size_t highest) const
  {
    std::size_t count = 0;
    const char* const end = value.data() + value.size();
    const auto [rest, failure] = std::from_chars(value.data(), end, count);
    if (failure != std::errc() || rest != end || value.empty() || count < lowest || count > highest) {
      refuse(key, fmt::format("{} is not a whole number from {} to {}", in_quotes(value), lowest, highest));
    }
    return count;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const
  {
    throw InputError(place_, fmt::format("{}: {}", key, what));
  }

  MachineFile& machine_;
  const std::string& place_;
  std::set<std::string> keys_;
};

}  // namespace

MachineFile read_machine(const std::string& file, const MachineOverrides& overrides, const std::string& place)
{
  MachineFile machine;
  machine.name = std::filesystem::path(file).stem().string();
  GeneratorCommand command("isobar platform generate machine");
  command.argument(file);
  FaultList faults(file);
  MachineReader reader(file, faults);
  reader.read(machine);
  faults.throw_if_any();
  Overrides replaced(machine, place);
  for (const auto& [key, value] : overrides) {
    replaced.apply(key, value);
    command.path("--set", key + "=" + value);
  }
  machine.command = command.text();
  reader.require_links(machine);
  faults.throw_if_any();
  std::size_t left = most_devices;
  for (const auto& group : machine.groups) {
    if (group.count > left / group.gpus_per_node) {
      throw InputError(file, fmt::format("{} nodes of {} GPUs are too many; a platform has at most {} devices",
                                         group.count, group.gpus_per_node, most_devices));
    }
    left -= group.count * group.gpus_per_node;
  }
  std::erase_if(machine.groups, [](const auto& group) { return group.count == 0; });
  if (machine.groups.empty()) throw InputError(place, "no nodes are left; write a count above 0");
  return machine;
}

void calibrate(MachineFile& machine, const compute::Calibration& calibration)
{
  std::vector<std::string> others;
  bool is_used = false;
  for (auto& group : machine.groups) {
    if (is_same_device_type(group.device, calibration.device)) {
      group.links = calibration.links;
      is_used = true;
    } else {
      others.push_back(in_quotes(group.device));
    }
  }
  if (!is_used) {
    throw InputError("--system",
                     fmt::format("{} calibrates nodes of {}; the machine has {}", on_one_line(calibration.file),
                                 in_quotes(calibration.device), fmt::join(others, ", ")));
  }
  GeneratorCommand command(machine.command);
  command.path("--system", calibration.file);
  machine.command = command.text();
}

}  // namespace isobar::sim

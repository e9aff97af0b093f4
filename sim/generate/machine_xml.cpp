#include "core/cluster/device_types.hpp"
#include "sim/generate/machine_file.hpp"
#include "sim/generate/platform_xml.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

namespace isobar::sim {

namespace {

/// Bandwidth and latency of links as attributes, rounded to whole bytes per second and nanoseconds.
struct LinkText {
  std::string bandwidth;
  std::string latency;
};

/// `links` links in a row have the latency of a message together.
LinkText link_text(BytesPerSecond bandwidth, Seconds latency, int links)
{
  return {attribute_of(BytesPerSecond(std::round(bandwidth.value))),
          attribute_of(Seconds(std::round(latency.value / links * 1e9) / 1e9))};
}

const Fabric& fabric_of(const NodeGroupOfMachine& group)
{
  return inside_fabric(device_type(group.device).name, group.inside->topology);
}

BytesPerSecond attained_inside(const NodeGroupOfMachine& group)
{
  const InsideOfNode& inside = *group.inside;
  const double factor = group.links.inside;
  if (inside.bandwidth.is_measured) return inside.bandwidth.value * fabric_of(group).ring_gain * factor;
  BytesPerSecond built_for = device_type(group.device).inside_bandwidth;
  if (inside.topology == Topology::Mesh && group.gpus_per_node > 1) {
    built_for = built_for / static_cast<double>(group.gpus_per_node - 1);
  }
  return attained(fabric_of(group), inside.bandwidth.value, built_for) * factor;
}

BytesPerSecond attained_outside(const NodeGroupOfMachine& group)
{
  const LinkBandwidth& nic = group.outside->bandwidth;
  const BytesPerSecond own = nic.is_measured ? nic.value : attained(outside_fabric(), nic.value, line_rate(nic.value));
  return own * group.links.outside;
}

/// Names of zones and hosts of all generators consist of these characters.
std::string name_from(const std::string& text)
{
  std::string name = text.empty() ? "machine" : text;
  for (char& character : name) {
    const auto byte = static_cast<unsigned char>(character);
    if (std::isalnum(byte) == 0 && character != '-' && character != '_') character = '_';
  }
  return name;
}

/// Writes the nodes of one group.
class GroupWriter {
 public:
  GroupWriter(XmlWriter& xml, const NodeGroupOfMachine& group) : xml_(xml), group_(group)
  {
    Device device = device_of(group.device, {});
    device.collective_start = (group.inside ? fabric_of(group) : outside_fabric()).start;
    host_ = host_of(device, {}, {});
    host_speed_ = attribute_of(host_.speed);
    if (group.inside) {
      const Fabric& fabric = fabric_of(group);
      inside_ = link_text(attained_inside(group), group.inside->latency.value_or(fabric.latency),
                          group.inside->topology == Topology::Mesh ? 1 : 2);
      shares_directions_ = fabric.shares_directions;
    }
    if (group.outside) {
      outside_ = link_text(attained_outside(group), group.outside->latency.value_or(outside_fabric().latency), 2);
    }
  }

  /// The hosts and links of a node; SimGrid's DTD wants all routes after them.
  void write_devices(std::size_t node)
  {
    if (group_.outside) {
      for (std::size_t nic = 0; nic < group_.outside->nics; ++nic) write_link(nic_of(node, nic), outside_, true);
    }
    for (std::size_t gpu = 0; gpu < group_.gpus_per_node; ++gpu) {
      const std::string name = gpu_of(node, gpu);
      xml_.open("host", {{"id", name}, {"speed", host_speed_}});
      write_props(xml_, host_.props);
      xml_.element("prop", {{"id", "site"}, {"value", fmt::format("n{}", node)}});
      xml_.close();
      if (has_routes() && !is_mesh()) write_link(link_of(node, gpu), inside_, !shares_directions_);
    }
    if (has_routes() && is_mesh()) {
      for_each_pair([&](std::size_t from, std::size_t to) { write_link(pair_of(node, from, to), inside_, false); });
    }
    if (!group_.outside) return;
    for (std::size_t gpu = 0; gpu < group_.gpus_per_node; ++gpu) {
      const std::string nic = nic_of(node, gpu * group_.outside->nics / group_.gpus_per_node);
      xml_.element("host_link", {{"id", gpu_of(node, gpu)}, {"up", nic + "_UP"}, {"down", nic + "_DOWN"}});
    }
  }

  void write_routes(std::size_t node)
  {
    if (!has_routes()) return;
    for_each_pair([&](std::size_t from, std::size_t to) {
      xml_.open("bypassRoute", {{"src", gpu_of(node, from)}, {"dst", gpu_of(node, to)}}, XmlWriter::Layout::SameLine);
      if (is_mesh()) {
        xml_.element("link_ctn", {{"id", pair_of(node, from, to)}});
      } else if (shares_directions_) {
        xml_.element("link_ctn", {{"id", link_of(node, from)}});
        xml_.element("link_ctn", {{"id", link_of(node, to)}});
      } else {
        xml_.element("link_ctn", {{"id", link_of(node, from)}, {"direction", "UP"}});
        xml_.element("link_ctn", {{"id", link_of(node, to)}, {"direction", "DOWN"}});
      }
      xml_.close();
    });
  }

 private:
  static std::string gpu_of(std::size_t node, std::size_t gpu) { return fmt::format("n{}g{}", node, gpu); }
  static std::string nic_of(std::size_t node, std::size_t nic) { return fmt::format("nic.n{}.{}", node, nic); }
  std::string link_of(std::size_t node, std::size_t gpu) const
  {
    return fmt::format("{}.n{}g{}", group_.inside->topology == Topology::Pcie ? "pcie" : "nvlink", node, gpu);
  }
  static std::string pair_of(std::size_t node, std::size_t from, std::size_t to)
  {
    return fmt::format("nvlink.n{}g{}.g{}", node, from, to);
  }
  bool has_routes() const { return group_.inside && group_.gpus_per_node > 1; }
  bool is_mesh() const { return group_.inside->topology == Topology::Mesh; }

  template <typename Visit>
  void for_each_pair(Visit visit) const
  {
    for (std::size_t from = 0; from < group_.gpus_per_node; ++from) {
      for (std::size_t to = 0; to < group_.gpus_per_node; ++to) {
        if (from != to) visit(from, to);
      }
    }
  }

  void write_link(const std::string& name, const LinkText& text, bool has_directions)
  {
    xml_.element("link", {{"id", name},
                          {"bandwidth", text.bandwidth},
                          {"latency", text.latency},
                          {"sharing_policy", has_directions ? "SPLITDUPLEX" : "SHARED"}});
  }

  XmlWriter& xml_;
  const NodeGroupOfMachine& group_;
  StarHost host_;
  std::string host_speed_;
  LinkText inside_;
  LinkText outside_;
  bool shares_directions_ = false;
};

/// `factor`: of a calibration, which `value` has.
std::string note_on_link(const std::string& where, const LinkBandwidth& given, BytesPerSecond value,
                         const Fabric& fabric, double factor)
{
  const std::string calibrated = factor == 1 ? "" : fmt::format(", times {:g} by the calibration", factor);
  if (given.is_measured)
    return fmt::format("{}: {} as the machine file says it was measured{}.", where, option_of(value), calibrated);
  return fmt::format("{}: {} of {}; as the {} attains{}: {}.", where, option_of(value), option_of(given.value),
                     fabric.name, calibrated, fabric.source);
}

std::vector<std::string> notes_on_machine(const MachineFile& machine)
{
  std::vector<std::string> notes = {
      "A machine as its file describes it. Bandwidths are those that NCCL attains, latencies those of a step of its",
      "rings, and collective_start passes before the first one; docs/formats/machine.md says how. GPU i of n in a node "
      "leaves it through NIC floor(i x nics / n)."};
  std::vector<DeviceGroup> types;
  for (const auto& group : machine.groups) {
    types.push_back({group.count * group.gpus_per_node, group.device});
    if (group.inside && group.gpus_per_node > 1) {
      notes.push_back(note_on_link(group.device + " inside a node", group.inside->bandwidth, attained_inside(group),
                                   fabric_of(group), group.links.inside));
    }
    if (group.outside) {
      notes.push_back(note_on_link(group.device + ", a NIC", group.outside->bandwidth, attained_outside(group),
                                   outside_fabric(), group.links.outside));
    }
  }
  for (const auto& note : machine.notes) notes.push_back(note + ".");
  for (auto& note : notes_on(types)) notes.push_back(std::move(note));
  return notes;
}

}  // namespace

std::string machine_to_xml(const MachineFile& machine)
{
  XmlWriter xml;
  open_platform(xml, notes_on_machine(machine));
  xml.open("zone", {{"id", name_from(machine.name)}, {"routing", "Cluster"}});
  write_props(xml, made_by(machine.command));
  const auto for_each_node = [&](void (GroupWriter::*write)(std::size_t)) {
    std::size_t node = 0;
    for (const auto& group : machine.groups) {
      GroupWriter writer(xml, group);
      for (std::size_t i = 0; i < group.count; ++i) (writer.*write)(node++);
    }
  };
  for_each_node(&GroupWriter::write_devices);
  for_each_node(&GroupWriter::write_routes);
  xml.close();
  xml.close();
  return std::move(xml).finished();
}

}  // namespace isobar::sim

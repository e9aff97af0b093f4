#include "sim/generate/platform_xml.hpp"

#include "core/cluster/device_types.hpp"
#include "core/model/dtype.hpp"
#include "sim/generate/platform_generator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

namespace isobar::sim {

namespace {

struct Unit {
  double size;
  std::string_view name;
};

constexpr std::array<Unit, 5> simgrid_speeds = {{{1e15, "Pf"}, {1e12, "Tf"}, {1e9, "Gf"}, {1e6, "Mf"}, {1, "f"}}};
constexpr std::array<Unit, 5> simgrid_bandwidths = {
    {{1e12, "TBps"}, {1e9, "GBps"}, {1e6, "MBps"}, {1e3, "kBps"}, {1, "Bps"}}};
constexpr std::array<Unit, 5> speeds = {
    {{1e15, "PFLOP/s"}, {1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1e6, "MFLOP/s"}, {1, "FLOP/s"}}};
constexpr std::array<Unit, 5> bandwidths = {{{1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1, "B/s"}}};
constexpr std::array<Unit, 7> sizes = {
    {{1e9, "GB"}, {0x1p30, "GiB"}, {1e6, "MB"}, {0x1p20, "MiB"}, {1e3, "kB"}, {0x1p10, "KiB"}, {1, "B"}}};
constexpr std::array<Unit, 5> times = {{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}, {1, "s"}}};

/// Number of digits between the first and the last that is not 0: 3 in "1250" and in "0.00125".
std::size_t significant_digits(std::string_view number)
{
  const auto first = number.find_first_not_of("0.");
  if (first == std::string_view::npos) return 0;
  const auto last = number.find_last_not_of("0.");
  const auto digits = number.substr(first, last - first + 1);
  return digits.size() - static_cast<std::size_t>(std::count(digits.begin(), digits.end(), '.'));
}

/// `value` in the unit that needs the fewest digits, the larger of two such units. Where no text of twelve digits reads
/// back to `value` within a relative `slack`, all digits in the base unit, the last of `units`.
template <std::size_t Count>
std::string text_in(const std::array<Unit, Count>& units, double value, std::string_view between, double slack)
{
  std::string best = fmt::format("{}{}{}", value, between, units.back().name);
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const auto& unit : units) {
    const auto number = fmt::format("{:.12g}", value / unit.size);
    const double read_back = std::strtod(number.c_str(), nullptr) * unit.size;
    if (value < unit.size || std::abs(read_back - value) > slack * value) continue;
    if (significant_digits(number) >= fewest) continue;
    fewest = significant_digits(number);
    best = fmt::format("{}{}{}", number, between, unit.name);
  }
  return best;
}

/// Slack for times: readers multiply by 1e-3, which is no double, and often get the double next to the right one.
constexpr double last_bit = 0x1p-52;

std::string router_of(const std::string& zone)
{
  return zone + ".router";
}

}  // namespace

void open_platform(XmlWriter& xml, const std::vector<std::string>& notes)
{
  xml.prolog("<?xml version=\"1.0\"?>");
  xml.prolog("<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">");
  xml.comment(notes);
  xml.open("platform", {{"version", "4.1"}});
}

void write_props(XmlWriter& xml, const WrittenProps& props)
{
  for (const auto& [id, value] : props) xml.element("prop", {{"id", id}, {"value", value}});
}

namespace {

void write_star(XmlWriter& xml, const Star& star)
{
  xml.open("zone", {{"id", star.name}, {"routing", "Cluster"}});
  write_props(xml, star.props);
  for (const auto& host : star.hosts) {
    const std::string link = "nic." + host.name;
    xml.open("host", {{"id", host.name}, {"speed", attribute_of(host.speed)}});
    write_props(xml, host.props);
    xml.close();
    xml.element("link", {{"id", link},
                         {"bandwidth", attribute_of(host.bandwidth)},
                         {"latency", attribute_of(host.latency)},
                         {"sharing_policy", "SPLITDUPLEX"}});
    xml.element("host_link", {{"id", host.name}, {"up", link + "_UP"}, {"down", link + "_DOWN"}});
  }
  xml.element("router", {{"id", router_of(star.name)}});
  xml.close();
}

BytesPerSecond to_whole_bytes(BytesPerSecond bandwidth)
{
  return BytesPerSecond(std::round(bandwidth.value));
}
Seconds to_whole_nanoseconds(Seconds time)
{
  return Seconds(std::round(time.value * 1e9) / 1e9);
}

/// Appends the devices of a group to a star, named after it.
void append_hosts(Star& star, const DeviceGroup& group, const Device& plain, BytesPerSecond bandwidth, Seconds latency)
{
  Device device = device_of(group.type, plain);
  for (std::size_t i = 0; i < group.count; ++i) {
    device.name = fmt::format("{}.{}", star.name, star.hosts.size());
    star.hosts.push_back(host_of(device, to_whole_bytes(bandwidth), latency));
  }
}

BytesPerSecond inside_bandwidth_of(const DeviceGroup& group, const Site& site)
{
  if (site.inside_bandwidth) return *site.inside_bandwidth;
  return group.type.empty() ? plain_inside_bandwidth : device_type(group.type).inside_bandwidth;
}

void write_site_of_devices(XmlWriter& xml, const Site& site, const Device& plain)
{
  Star star{site.name, {{"site", site.name}}, {}};
  // Two devices of a site are two links apart, and a round trip passes each of them twice.
  const Seconds latency = to_whole_nanoseconds(site.lan_rtt / 4);
  for (const auto& group : site.devices) append_hosts(star, group, plain, site.lan_bandwidth, latency);
  write_star(xml, star);
}

/// A zone whose nodes are stars, each with a link to the site's router. Routing "Floyd" finds the routes between nodes,
/// so the file names one route per node.
void write_site_of_nodes(XmlWriter& xml, const Site& site, const Device& plain)
{
  const Seconds inside_latency = to_whole_nanoseconds(site.inside_rtt / 4);
  const Seconds lan_latency = to_whole_nanoseconds((site.lan_rtt - site.inside_rtt) / 4);
  const auto node = [&](std::size_t i) { return fmt::format("{}.{}", site.name, i); };
  const std::string network = site.name + ".network";
  xml.open("zone", {{"id", site.name}, {"routing", "Floyd"}});
  for (std::size_t i = 0; i < site.nodes.size(); ++i) {
    Star star{node(i), {{"site", site.name}}, {}};
    append_hosts(star, site.nodes[i], plain, inside_bandwidth_of(site.nodes[i], site), inside_latency);
    write_star(xml, star);
  }
  xml.open("zone", {{"id", network}, {"routing", "Cluster"}});
  xml.element("router", {{"id", router_of(site.name)}});
  xml.close();
  for (std::size_t i = 0; i < site.nodes.size(); ++i) {
    xml.element("link", {{"id", "lan." + node(i)},
                         {"bandwidth", attribute_of(to_whole_bytes(site.lan_bandwidth))},
                         {"latency", attribute_of(lan_latency)},
                         {"sharing_policy", "SPLITDUPLEX"}});
  }
  for (std::size_t i = 0; i < site.nodes.size(); ++i) {
    xml.open("zoneRoute",
             {{"src", node(i)}, {"dst", network}, {"gw_src", router_of(node(i))}, {"gw_dst", router_of(site.name)}});
    xml.element("link_ctn", {{"id", "lan." + node(i)}, {"direction", "UP"}});
    xml.close();
  }
  xml.close();
}

std::string wan_link(const Site& from, const Site& to)
{
  return fmt::format("wan.{}.{}", from.name, to.name);
}

/// Calls `visit` for each ordered pair of different sites.
template <typename Visit>
void for_each_pair(const Sites& sites, Visit visit)
{
  for (std::size_t from = 0; from < sites.sites.size(); ++from) {
    for (std::size_t to = 0; to < sites.sites.size(); ++to) {
      if (from != to) visit(from, to);
    }
  }
}

void write_wide_area_links(XmlWriter& xml, const Sites& sites)
{
  for (const auto& site : sites.sites) {
    const auto cap = [&](const char* direction, const std::optional<BytesPerSecond>& bandwidth) {
      if (!bandwidth) return;
      xml.element("link", {{"id", fmt::format("{}.{}", direction, site.name)},
                           {"bandwidth", attribute_of(to_whole_bytes(*bandwidth))},
                           {"latency", "0s"}});
    };
    cap("egress", site.egress);
    cap("ingress", site.ingress);
  }
  for_each_pair(sites, [&](std::size_t from, std::size_t to) {
    const XmlWriter::Attributes attributes = {
        {"id", wan_link(sites.sites[from], sites.sites[to])},
        {"bandwidth", attribute_of(to_whole_bytes(sites.path(from, to).bandwidth))},
        {"latency", attribute_of(to_whole_nanoseconds(sites.wan_rtt(from, to) / 2))}};
    if (!sites.flows) return xml.element("link", attributes);
    xml.open("link", attributes);
    write_props(xml, {{"flows", std::to_string(*sites.flows)}, {"window", prop_of(sites.window)}});
    xml.close();
  });
}

void write_wide_area_routes(XmlWriter& xml, const Sites& sites)
{
  for_each_pair(sites, [&](std::size_t from, std::size_t to) {
    const Site& sender = sites.sites[from];
    const Site& receiver = sites.sites[to];
    xml.open("zoneRoute", {{"src", sender.name},
                           {"dst", receiver.name},
                           {"gw_src", router_of(sender.name)},
                           {"gw_dst", router_of(receiver.name)},
                           {"symmetrical", "NO"}});
    if (sender.egress) xml.element("link_ctn", {{"id", "egress." + sender.name}});
    xml.element("link_ctn", {{"id", wan_link(sender, receiver)}});
    if (receiver.ingress) xml.element("link_ctn", {{"id", "ingress." + receiver.name}});
    xml.close();
  });
}

}  // namespace

WrittenProps made_by(const std::string& command)
{
  return {{"made_by", command}};
}

std::string attribute_of(FlopsPerSecond speed)
{
  return text_in(simgrid_speeds, speed.value, "", 0);
}
std::string attribute_of(BytesPerSecond bandwidth)
{
  return text_in(simgrid_bandwidths, bandwidth.value, "", 0);
}
std::string attribute_of(Seconds time)
{
  return text_in(times, time.value, "", last_bit);
}
std::string prop_of(FlopsPerSecond speed)
{
  return text_in(speeds, speed.value, " ", 0);
}
std::string prop_of(Bytes size)
{
  return text_in(sizes, size.value, " ", 0);
}
std::string prop_of(Seconds time)
{
  return text_in(times, time.value, " ", last_bit);
}
std::string option_of(FlopsPerSecond speed)
{
  return text_in(speeds, speed.value, "", 0);
}
std::string option_of(BytesPerSecond bandwidth)
{
  return text_in(bandwidths, bandwidth.value, "", 0);
}
std::string option_of(Bytes size)
{
  return text_in(sizes, size.value, "", 0);
}
std::string option_of(Seconds time)
{
  return text_in(times, time.value, "", last_bit);
}
Device device_of(const std::string& type_name, const Device& plain)
{
  if (type_name.empty()) return plain;
  const auto& type = device_type(type_name);
  Device device;
  device.type = type_name;
  device.speed = type.float32;
  device.speed_in[DType::Float16] = type.fp16;
  if (type.bf16) device.speed_in[DType::BFloat16] = *type.bf16;
  device.memory = type.memory;
  return device;
}

StarHost host_of(const Device& device, BytesPerSecond bandwidth, Seconds latency)
{
  StarHost host{device.name, device.speed, {}, bandwidth, latency};
  if (!device.type.empty()) host.props.emplace_back("device", device.type);
  host.props.emplace_back("memory", prop_of(device.memory));
  for (const auto& [dtype, speed] : device.speed_in) {
    host.props.emplace_back(fmt::format("speed.{}", name_of(dtype)), prop_of(speed));
  }
  if (device.collective_start > Seconds(0))
    host.props.emplace_back("collective_start", prop_of(device.collective_start));
  return host;
}

std::vector<std::string> notes_on(const std::vector<DeviceGroup>& groups)
{
  std::vector<std::string> notes;
  std::set<std::string> noted;
  for (const auto& group : groups) {
    if (group.type.empty() || !noted.insert(group.type).second) continue;
    if (notes.empty()) {
      notes.push_back(
          "Device types: dense peak rates of the vendor's data sheet; sustained rates are lower. Memory as the driver "
          "reports it.");
    }
    const auto& type = device_type(group.type);
    notes.push_back(fmt::format("{}: float32 {}, fp16 {}{}: {}; {}: {}.", group.type, prop_of(type.float32),
                                prop_of(type.fp16), type.bf16 ? ", bf16 " + prop_of(*type.bf16) : "", type.source,
                                prop_of(type.memory), type.memory_source));
  }
  return notes;
}

std::vector<std::string> notes_on_window(const std::optional<std::size_t>& flows, Bytes window)
{
  if (!flows) return {};
  std::vector<std::string> notes = {fmt::format(
      "A transfer between sites opens {} TCP flows of {} in flight and gets at most flows x window / round trip.",
      *flows, prop_of(window))};
  if (window == measured_window) {
    notes.push_back(
        fmt::format("{} is the median of one flow between GCP regions 45 ms and more apart (220 samples of iperf and",
                    prop_of(window)));
    notes.push_back("ping, cirquit/hivemind-multi-cloud, MIT, April-May 2023).");
  }
  return notes;
}

std::string platform_of_star(const std::string& command, const std::vector<std::string>& notes, Star star)
{
  star.props = made_by(command);
  XmlWriter xml;
  open_platform(xml, notes);
  write_star(xml, star);
  xml.close();
  return std::move(xml).finished();
}

std::string platform_of_sites(const std::string& command, const std::vector<std::string>& notes, const Sites& sites,
                              const Device& plain)
{
  XmlWriter xml;
  open_platform(xml, notes);
  xml.open("zone", {{"id", "all.sites"}, {"routing", "Full"}});
  write_props(xml, made_by(command));
  for (const auto& site : sites.sites) {
    site.nodes.empty() ? write_site_of_devices(xml, site, plain) : write_site_of_nodes(xml, site, plain);
  }
  // SimGrid's DTD wants the routes last.
  write_wide_area_links(xml, sites);
  write_wide_area_routes(xml, sites);
  xml.close();
  xml.close();
  return std::move(xml).finished();
}

}  // namespace isobar::sim

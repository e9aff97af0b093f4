#include "sim/generate/platform_xml.hpp"

#include "core/model/dtype.hpp"
#include "sim/generate/platform_generator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <set>

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

/// The digits that say something: 3 in "1250" and in "0.00125".
std::size_t significant_digits(std::string_view number)
{
  const auto first = number.find_first_not_of("0.");
  if (first == std::string_view::npos) return 0;
  const auto last = number.find_last_not_of("0.");
  const auto digits = number.substr(first, last - first + 1);
  return digits.size() - static_cast<std::size_t>(std::count(digits.begin(), digits.end(), '.'));
}

/// `value` with the unit that needs the fewest digits, the larger of two such units; with all its digits in the base
/// unit, which stands last, when a dozen do not read back to it within a relative `slack`.
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

/// Of times: who reads them multiplies by 1e-3, which is no double, and often gets the double next to the right one.
constexpr double last_bit = 0x1p-52;

std::string escaped(std::string_view text)
{
  std::string result;
  for (const char character : text) {
    switch (character) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += character;
    }
  }
  return result;
}

/// A comment may not contain two hyphens in a row.
std::string comment_text(std::string text)
{
  for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at)) text.insert(at + 1, " ");
  return text;
}

/// Appends lines; a thin layer over fmt.
class Xml {
 public:
  template <typename... Values>
  void line(int depth, fmt::format_string<Values...> format, Values&&... values)
  {
    text_.append(static_cast<std::size_t>(2 * depth), ' ');
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
    text_ += '\n';
  }

  void heading(const std::vector<std::string>& notes)
  {
    line(0, "<?xml version=\"1.0\"?>");
    line(0, "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">");
    line(0, "<!--");
    for (const auto& note : notes) line(note.empty() ? 0 : 1, "{}", comment_text(note));
    line(0, "-->");
    line(0, "<platform version=\"4.1\">");
  }

  void props(int depth, const WrittenProps& props)
  {
    for (const auto& [id, value] : props) line(depth, R"(<prop id="{}" value="{}"/>)", id, escaped(value));
  }

  void star(int depth, const Star& star)
  {
    line(depth, R"(<zone id="{}" routing="Cluster">)", star.name);
    props(depth + 1, star.props);
    for (const auto& host : star.hosts) {
      line(depth + 1, R"(<host id="{}" speed="{}">)", host.name, attribute_of(host.speed));
      props(depth + 2, host.props);
      line(depth + 1, "</host>");
      line(depth + 1, R"(<link id="nic.{}" bandwidth="{}" latency="{}" sharing_policy="SPLITDUPLEX"/>)", host.name,
           attribute_of(host.bandwidth), attribute_of(host.latency));
      line(depth + 1, R"(<host_link id="{0}" up="nic.{0}_UP" down="nic.{0}_DOWN"/>)", host.name);
    }
    line(depth + 1, R"(<router id="{}.router"/>)", star.name);
    line(depth, "</zone>");
  }

  std::string finished()
  {
    line(0, "</platform>");
    return std::move(text_);
  }

 private:
  std::string text_;
};

BytesPerSecond to_whole_bytes(BytesPerSecond bandwidth)
{
  return BytesPerSecond(std::round(bandwidth.value));
}
Seconds to_whole_nanoseconds(Seconds time)
{
  return Seconds(std::round(time.value * 1e9) / 1e9);
}

/// The wide-area links, then the routes over them, which the DTD wants last.
void wide_area(Xml& xml, const Sites& sites)
{
  const std::size_t count = sites.sites.size();
  for (const auto& site : sites.sites) {
    const auto cap = [&](const char* name, const std::optional<BytesPerSecond>& bandwidth) {
      if (!bandwidth) return;
      xml.line(2, R"(<link id="{}.{}" bandwidth="{}" latency="0s"/>)", name, site.name,
               attribute_of(to_whole_bytes(*bandwidth)));
    };
    cap("egress", site.egress);
    cap("ingress", site.ingress);
  }
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      if (from == to) continue;
      const auto link = fmt::format(R"(<link id="wan.{}.{}" bandwidth="{}" latency="{}")", sites.sites[from].name,
                                    sites.sites[to].name, attribute_of(to_whole_bytes(sites.path(from, to).bandwidth)),
                                    attribute_of(to_whole_nanoseconds(sites.wan_rtt(from, to) / 2)));
      if (!sites.flows) {
        xml.line(2, "{}/>", link);
        continue;
      }
      xml.line(2, "{}>", link);
      xml.props(3, {{"flows", std::to_string(*sites.flows)}, {"window", prop_of(sites.window)}});
      xml.line(2, "</link>");
    }
  }
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      if (from == to) continue;
      const auto& sender = sites.sites[from];
      const auto& receiver = sites.sites[to];
      xml.line(2, R"(<zoneRoute src="{0}" dst="{1}" gw_src="{0}.router" gw_dst="{1}.router" symmetrical="NO">)",
               sender.name, receiver.name);
      if (sender.egress) xml.line(3, R"(<link_ctn id="egress.{}"/>)", sender.name);
      xml.line(3, R"(<link_ctn id="wan.{}.{}"/>)", sender.name, receiver.name);
      if (receiver.ingress) xml.line(3, R"(<link_ctn id="ingress.{}"/>)", receiver.name);
      xml.line(2, "</zoneRoute>");
    }
  }
}

WrittenProps made_by(const std::string& command)
{
  return {{"made_by", command}};
}

}  // namespace

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
  device.type = type.name;
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
  return host;
}

std::vector<std::string> notes_on(const std::vector<DeviceGroup>& groups)
{
  std::vector<std::string> notes;
  std::set<std::string> told;
  for (const auto& group : groups) {
    if (group.type.empty() || !told.insert(group.type).second) continue;
    if (notes.empty()) {
      notes.push_back(
          "Device types: dense peak rates and decimal GB of the vendor's data sheet; sustained rates are lower.");
    }
    const auto& type = device_type(group.type);
    notes.push_back(fmt::format("{}: float32 {}, fp16 {}{}, {}: {}.", type.name, prop_of(type.float32),
                                prop_of(type.fp16), type.bf16 ? ", bf16 " + prop_of(*type.bf16) : "",
                                prop_of(type.memory), type.source));
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
  Xml xml;
  xml.heading(notes);
  star.props = made_by(command);
  xml.star(1, star);
  return xml.finished();
}

std::string platform_of_sites(const std::string& command, const std::vector<std::string>& notes, const Sites& sites,
                              const Device& plain)
{
  Xml xml;
  xml.heading(notes);
  xml.line(1, R"(<zone id="all.sites" routing="Full">)");
  xml.props(2, made_by(command));
  for (const auto& site : sites.sites) {
    Star star{site.name, {{"site", site.name}}, {}};
    // Two devices of a site are two links apart, and a round trip passes each of them twice.
    const Seconds latency = to_whole_nanoseconds(site.lan_rtt / 4);
    for (const auto& group : site.devices) {
      Device device = device_of(group.type, plain);
      for (std::size_t i = 0; i < group.count; ++i) {
        device.name = fmt::format("{}.{}", site.name, star.hosts.size());
        star.hosts.push_back(host_of(device, to_whole_bytes(site.lan_bandwidth), latency));
      }
    }
    xml.star(2, star);
  }
  wide_area(xml, sites);
  xml.line(1, "</zone>");
  return xml.finished();
}

}  // namespace isobar::sim

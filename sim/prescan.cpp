#include "sim/prescan.hpp"

#include "core/errors.hpp"
#include "core/utf8.hpp"
#include "sim/profile.hpp"
#include "sim/simgrid_units.hpp"

#include <fmt/format.h>

#include <strings.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <pugixml.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace isobar::sim {

namespace {

/// Zones may stand in zones this deep.
constexpr int most_nesting = 64;
/// Bytes of a fault that are shown; a name may be as long as the file.
constexpr std::size_t longest_fault = 500;
/// Switches and links that a topology may make beside its hosts.
constexpr double most_topology = 1e6;

std::vector<std::string> split(std::string_view text, std::string_view separators)
{
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find_first_of(separators);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string trimmed(const std::string& text)
{
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<std::uint64_t> whole_number(std::string_view text)
{
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

/// The numbers of "0-3,7,9-11", at most `most`. @throws std::invalid_argument with the fault in words.
std::vector<std::uint64_t> numbers_of_radical(const std::string& radical, std::size_t most)
{
  std::vector<std::uint64_t> numbers;
  std::unordered_set<std::uint64_t> seen;
  for (const auto& group : split(radical, ",")) {
    const auto ends = split(group, "-");
    const auto first = whole_number(ends.front());
    const auto last = whole_number(ends.back());
    if (ends.size() > 2 || !first || !last) {
      throw std::invalid_argument(
          fmt::format("\"{}\" is no list of numbers; write ranges and numbers, such as \"0-3,7\"", radical));
    }
    if (*last < *first) throw std::invalid_argument(fmt::format("\"{}\" ends before it begins", group));
    if (*last - *first >= most - numbers.size()) {
      throw std::invalid_argument(
          fmt::format("\"{}\" makes more hosts than the {} that a platform may have", radical, most_hosts));
    }
    if (*last > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument(fmt::format("\"{}\" is more than SimGrid counts, 2147483647", group));
    }
    for (std::uint64_t number = *first; number <= *last; ++number) {
      if (!seen.insert(number).second) throw std::invalid_argument(fmt::format("\"{}\" has {} twice", radical, number));
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::string attribute(const pugi::xml_node& node, const char* name)
{
  return node.attribute(name).value();
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words)
{
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Scanner {
 public:
  Scanner(const std::string& text, const std::string& name, const ProfileReader& read_profile)
      : text_(text), name_(name), read_profile_(read_profile)
  {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') newlines_.push_back(i);
    }
  }

  PlatformScan scan()
  {
    pugi::xml_document document;
    // As bytes: another encoding would shift the offsets that lines are counted by.
    const auto parsed = document.load_buffer(text_.data(), text_.size(), pugi::parse_default | pugi::parse_doctype,
                                             pugi::encoding_utf8);
    if (!parsed) {
      add_fault(line_at(static_cast<std::size_t>(std::max<std::ptrdiff_t>(parsed.offset, 0))),
                fmt::format("not XML: {}", parsed.description()));
    } else {
      scan_root(document);
    }
    throw_faults();
    return std::move(scan_);
  }

 private:
  enum class NetpointKind { Host, Router, Zone };
  struct Netpoint {
    NetpointKind kind;
    int line;
    std::uint64_t number;
  };
  struct LinkFacts {
    int line;
    bool split_duplex;
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  struct Trace {
    int line;
    ProfileRange range;
  };
  enum class ProfileKind { Speed, Bandwidth, Latency, State };
  struct Zone {
    std::string name;
    std::string routing;
    std::size_t index = 0;
    Props props;
    std::string site;
    std::vector<pugi::xml_node> host_links;
    std::unordered_map<std::uint64_t, int> routes;  // by the numbers of both ends
  };

  // Faults and their places.

  int line_at(std::size_t offset) const
  {
    return static_cast<int>(std::lower_bound(newlines_.begin(), newlines_.end(), offset) - newlines_.begin()) + 1;
  }
  int line_of(const pugi::xml_node& node) const
  {
    return line_at(static_cast<std::size_t>(std::max<std::ptrdiff_t>(node.offset_debug(), 0)));
  }
  void add_fault(int line, const std::string& what)
  {
    faults_.emplace_back(line, fmt::format("{}:{}: {}", name_, line, what));
  }
  void add_fault(const pugi::xml_node& node, const std::string& what)
  {
    const std::string id = attribute(node, "id");
    add_fault(line_of(node),
              id.empty() ? fmt::format("{}: {}", node.name(), what) : fmt::format("{} {}: {}", node.name(), id, what));
  }
  void throw_faults()
  {
    if (faults_.empty()) return;
    std::stable_sort(faults_.begin(), faults_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> lines;
    for (const auto& [line, fault] : faults_) lines.push_back(shown(fault, longest_fault));
    throw InputError(lines);
  }

  // Attributes.

  /// Faults an attribute that SimGrid requires; false when it is absent.
  bool has_all(const pugi::xml_node& node, std::initializer_list<const char*> names)
  {
    bool complete = true;
    for (const char* name : names) {
      if (node.attribute(name)) continue;
      add_fault(node, fmt::format("no {}", name));
      complete = false;
    }
    return complete;
  }

  /// The quantity in an attribute, or `fallback` after a fault. `least` says whether 0 will do.
  enum class Least { Zero, MoreThanZero };
  double quantity(const pugi::xml_node& node, const char* name, const std::string& text, const SimGridUnits& units,
                  Least least, double fallback)
  {
    try {
      const double value = value_with_unit(text, units);
      if (value < 0) throw std::invalid_argument(fmt::format("\"{}\" is less than 0", text));
      if (value > 0 || least == Least::Zero) return value;
      throw std::invalid_argument(fmt::format("\"{}\" is not more than 0", text));
    } catch (const std::invalid_argument& fault) {
      add_fault(node, fmt::format("{} {}", name, fault.what()));
      return fallback;
    }
  }
  /// The speeds of all power states; those that are not in use may be 0 (a host that boots).
  void check_speeds(const pugi::xml_node& node, std::size_t used)
  {
    const auto speeds = split(attribute(node, "speed"), ",");
    for (std::size_t i = 0; i < speeds.size(); ++i) {
      quantity(node, "speed", trimmed(speeds[i]), speed_units(), i == used ? Least::MoreThanZero : Least::Zero, 1);
    }
    if (used >= speeds.size()) {
      add_fault(node, fmt::format("pstate {} is none of its {} speeds, counted from 0", used, speeds.size()));
    }
  }
  BytesPerSecond bandwidth(const pugi::xml_node& node, const char* name)
  {
    return BytesPerSecond(quantity(node, name, attribute(node, name), bandwidth_units(), Least::MoreThanZero, 1));
  }
  Seconds latency(const pugi::xml_node& node, const char* name)
  {
    return Seconds(quantity(node, name, attribute(node, name), time_units(), Least::Zero, 0));
  }
  /// The link that an element makes by two of its attributes, or nothing where they are absent or 0.
  std::optional<PlatformScan::Link> made_link(const pugi::xml_node& node, const char* bandwidth_name,
                                              const char* latency_name)
  {
    const auto value = [&](const char* name, const SimGridUnits& units) {
      const std::string text = attribute(node, name);
      return text.empty() ? 0 : quantity(node, name, text, units, Least::Zero, 1);
    };
    const BytesPerSecond rate(value(bandwidth_name, bandwidth_units()));
    const Seconds delay(value(latency_name, time_units()));
    if (delay.value > 0 && rate.value <= 0)
      add_fault(node, fmt::format("{} without a {}", latency_name, bandwidth_name));
    if (rate.value <= 0) return std::nullopt;
    return PlatformScan::Link{delay, rate};
  }
  void check_cores(const pugi::xml_node& node)
  {
    const auto core = node.attribute("core");
    if (core && whole_number(core.value()).value_or(0) < 1) {
      add_fault(node, fmt::format("core \"{}\" is no number of cores; write a whole number from 1", core.value()));
    }
  }
  void check_coordinates(const pugi::xml_node& node)
  {
    const std::string text = attribute(node, "coordinates");
    const auto parts = split(text, " ");
    const bool numbers = std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
      char* end = nullptr;
      return std::isfinite(std::strtod(part.c_str(), &end)) && end != part.c_str() && *end == '\0';
    });
    if (parts.size() != 3 || !numbers) {
      add_fault(
          node,
          fmt::format("coordinates \"{}\" are not the three numbers of a Vivaldi zone, such as \"10 20 0.5\"", text));
    }
  }

  // Names.

  void add_netpoint(const pugi::xml_node& node, const std::string& name, NetpointKind kind)
  {
    const auto [known, added] = netpoints_.try_emplace(name, Netpoint{kind, line_of(node), netpoints_.size()});
    if (!added) {
      add_fault(node, fmt::format("the name {} is already taken in line {}", name, known->second.line));
    }
  }
  void add_host(const pugi::xml_node& node, const std::string& name, const Zone& zone, const Props& props)
  {
    add_netpoint(node, name, NetpointKind::Host);
    if (scan_.hosts.size() == most_hosts) {
      add_fault(node, fmt::format("more hosts than the {} that a platform may have", most_hosts));
    }
    if (scan_.hosts.size() >= most_hosts) return;
    ScannedHost host{name, line_of(node), zone.index, props};
    if (!host.props.site && !zone.site.empty()) host.props.site = zone.site;
    scan_.hosts.push_back(std::move(host));
  }
  void add_link(const pugi::xml_node& node, const std::string& name, Seconds delay, BytesPerSecond rate,
                bool split_duplex)
  {
    const auto [known, added] = links_.try_emplace(name, LinkFacts{line_of(node), split_duplex, delay, rate});
    if (!added) {
      add_fault(node, fmt::format("the link {} is already there in line {}", name, known->second.line));
      return;
    }
    if (!split_duplex) return;
    add_link(node, name + "_UP", delay, rate, false);
    add_link(node, name + "_DOWN", delay, rate, false);
  }
  /// The links of SimGrid that a written link stands for.
  std::vector<std::string> parts_of_link(const std::string& name) const
  {
    const auto link = links_.find(name);
    if (link != links_.end() && link->second.split_duplex) return {name + "_UP", name + "_DOWN"};
    return {name};
  }
  bool knows_link(const std::string& name) const
  {
    // Topologies name their links by rules of their own; SimGrid knows them.
    return name == "__loopback__" || links_.contains(name) ||
           std::any_of(topologies_.begin(), topologies_.end(),
                       [&name](const std::string& id) { return name.starts_with(id + "_"); });
  }

  // Props.

  Props read_props(const pugi::xml_node& node, std::optional<PropHolder> holder)
  {
    Props props;
    std::set<std::string> seen;
    for (const auto& prop : node.children("prop")) {
      const std::string id = attribute(prop, "id");
      if (!seen.insert(id).second) {
        add_fault(line_of(prop), fmt::format("{} {}: prop {}: given twice; SimGrid would keep the first", node.name(),
                                             attribute(node, "id"), id));
      } else if (holder) {
        try {
          read_prop(props, *holder, id, attribute(prop, "value"));
        } catch (const std::invalid_argument& fault) {
          add_fault(line_of(prop),
                    fmt::format("{} {}: prop {}: {}", node.name(), attribute(node, "id"), id, fault.what()));
        }
      }
    }
    return props;
  }
  static std::optional<Bytes> in_flight(const Props& props, const Props& zone)
  {
    const auto window = props.window ? props.window : zone.window;
    if (!window) return std::nullopt;
    return *window * (props.flows ? *props.flows : zone.flows.value_or(1));
  }
  void check_flows(const pugi::xml_node& node, const Props& props, const Props& zone)
  {
    if (props.flows && !props.window && !zone.window) {
      add_fault(node, "prop flows means nothing without the prop window, the bytes in flight of each flow");
    }
  }

  // Profiles.

  std::optional<ProfileRange> read_profile(const pugi::xml_node& node, const std::string& file)
  {
    const auto [known, added] = profile_names_.try_emplace(file, line_of(node));
    if (!added) {
      add_fault(node, fmt::format("the profile {} is already used in line {}; SimGrid reads a profile once", file,
                                  known->second));
      return std::nullopt;
    }
    const auto text = read_profile_(file);
    if (!text) {
      add_fault(node, fmt::format("the profile {} does not exist", file));
      return std::nullopt;
    }
    scan_.profiles.push_back(*text);
    return range_of(*text, file, 1, 0, line_of(node));
  }
  std::optional<ProfileRange> range_of(const std::string& text, const std::string& name, int first_line,
                                       double periodicity, int line)
  {
    try {
      return scan_profile(text, name, first_line, periodicity);
    } catch (const InputError& fault) {
      faults_.emplace_back(line, fault.what());
      return std::nullopt;
    }
  }
  void apply_to_link(const std::string& name, ProfileKind kind, const ProfileRange& range)
  {
    const auto link = links_.find(name);
    if (link == links_.end()) return;
    for (const auto& part : parts_of_link(name)) {
      scan_.profiled_links[part] = {link->second.latency, link->second.bandwidth};
    }
    if (kind == ProfileKind::Bandwidth) speed_up(range.highest / link->second.bandwidth.value);
    if (kind == ProfileKind::Latency) {
      latency_changes_ = true;
      if (link->second.latency.value > 0) speed_up(link->second.latency.value / range.lowest);
    }
  }
  void speed_up(double factor) { scan_.profile_speedup = std::max(scan_.profile_speedup, factor); }
  void read_file_attribute(const pugi::xml_node& node, const char* name, ProfileKind kind)
  {
    const std::string file = attribute(node, name);
    if (file.empty()) return;
    const auto range = read_profile(node, file);
    if (!range) return;
    if (kind == ProfileKind::Speed) speed_up(range->highest);
    if (kind == ProfileKind::Bandwidth || kind == ProfileKind::Latency)
      apply_to_link(attribute(node, "id"), kind, *range);
  }
  void read_host_profiles(const pugi::xml_node& node)
  {
    for (const char* name : {"speed_file", "availability_file"}) read_file_attribute(node, name, ProfileKind::Speed);
    read_file_attribute(node, "state_file", ProfileKind::State);
  }
  void scan_trace(const pugi::xml_node& node)
  {
    if (!has_all(node, {"id", "periodicity"})) return;
    const std::string id = attribute(node, "id");
    const auto known = traces_.find(id);
    if (known != traces_.end()) {
      add_fault(node, fmt::format("the name is already taken in line {}", known->second.line));
      return;
    }
    char* end = nullptr;
    const std::string period_text = attribute(node, "periodicity");
    const double period = std::strtod(period_text.c_str(), &end);
    if (period_text.empty() || *end != '\0' || !std::isfinite(period)) {
      add_fault(node, fmt::format("periodicity \"{}\" is no number of seconds", period_text));
      return;
    }
    std::optional<ProfileRange> range;
    const auto content = node.first_child();
    if (!attribute(node, "file").empty()) {
      range = read_profile(node, attribute(node, "file"));
    } else if (content.type() == pugi::node_pcdata) {
      if (!profile_names_.try_emplace(id, line_of(node)).second) {
        add_fault(node, "a profile file has the same name; SimGrid takes them for one");
      }
      range = range_of(content.value(), name_, line_of(content), period, line_of(content));
    } else {
      add_fault(node, "no file and no content");
    }
    traces_.emplace(id, Trace{line_of(node), range.value_or(ProfileRange{1, 1})});
  }
  void connect_trace(const pugi::xml_node& node)
  {
    if (!has_all(node, {"trace", "element"})) return;
    const std::string kind = node.attribute("kind") ? attribute(node, "kind") : "HOST_AVAIL";
    const std::string element = attribute(node, "element");
    const std::string id = attribute(node, "trace");
    const auto trace = traces_.find(id);
    if (trace == traces_.end() || trace->second.line > line_of(node)) {
      add_fault(node, fmt::format("there is no trace {} above", id));
      return;
    }
    if (!connections_.emplace(kind, id).second) {
      add_fault(node, fmt::format("the trace {} is connected twice as {}; SimGrid would keep the first", id, kind));
      return;
    }
    if (!is_one_of(kind, {"HOST_AVAIL", "SPEED"})) {
      const bool known = is_one_of(kind, {"LINK_AVAIL", "BANDWIDTH", "LATENCY"});
      add_fault(node, known ? "SimGrid connects no traces to links any more; name a file in the link's bandwidth_file, "
                              "latency_file or state_file"
                            : fmt::format("unknown kind \"{}\"; write SPEED or HOST_AVAIL", kind));
      return;
    }
    const auto host = netpoints_.find(element);
    if (host == netpoints_.end() || host->second.kind != NetpointKind::Host) {
      add_fault(node, fmt::format("there is no host {}", element));
      return;
    }
    if (kind == "SPEED") speed_up(trace->second.range.highest);
  }

  // Elements.

  void scan_root(const pugi::xml_document& document)
  {
    const auto root = document.document_element();
    if (std::string_view(root.name()) != "platform") {
      add_fault(line_of(root),
                fmt::format("the root is <{}>; a platform file has <platform version=\"4.1\">", root.name()));
      return;
    }
    const auto has_doctype = [](const pugi::xml_node& node) { return node.type() == pugi::node_doctype; };
    if (!document.find_child(has_doctype)) {
      add_fault(line_of(root),
                "no DOCTYPE above; SimGrid wants <!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">");
    }
    check_version(root);
    check_attributes(root, 0);
    if (!faults_.empty()) return;
    std::optional<int> top_zone;
    for (const auto& child : root.children()) {
      const std::string_view tag = child.name();
      if (tag == "config") {
        read_props(child, std::nullopt);
      } else if (is_one_of(tag, {"zone", "AS", "cluster"})) {
        if (top_zone) {
          add_fault(child,
                    fmt::format("a second zone at the top; the one in line {} has to hold all others", *top_zone));
          return;
        }
        top_zone = line_of(child);
        scan_content(child, nullptr);
      } else if (is_one_of(tag, {"actor", "process"})) {
        add_fault(child, "actors do not belong into a platform file; Isobar runs the plan");
      } else {
        scan_content(child, nullptr);
      }
    }
    if (!top_zone) add_fault(line_of(root), "no <zone>; a platform has one at its top");
    for (const auto& connection : connects_) connect_trace(connection);
    // SimGrid forgets the cap by a window when the latency changes, and a window may be as narrow as it likes.
    const bool windows = !scan_.link_in_flight.empty() || !scan_.zone_in_flight.empty();
    if (latency_changes_ && windows) speed_up(std::numeric_limits<double>::infinity());
  }

  void check_version(const pugi::xml_node& root)
  {
    const std::string version = attribute(root, "version");
    char* end = nullptr;
    const double number = std::strtod(version.c_str(), &end);
    const bool readable = !version.empty() && *end == '\0' && std::isfinite(number) && number > 0 && number < 1000;
    const long hundredths = readable ? std::lround(100 * number) : 0;
    if (hundredths < 400 || hundredths > 410) {
      add_fault(line_of(root), fmt::format("platform version \"{}\"; SimGrid reads 4 and 4.1", version));
    }
  }

  /// Attributes given twice, characters that no name has, and nesting without end.
  void check_attributes(const pugi::xml_node& node, int depth)
  {
    if (depth > most_nesting) {
      add_fault(node, fmt::format("nested deeper than {} elements", most_nesting));
      return;
    }
    std::set<std::string_view> seen;
    for (const auto& entry : node.attributes()) {
      if (!seen.insert(entry.name()).second) add_fault(node, fmt::format("{} is given twice", entry.name()));
      const std::string_view value = entry.value();
      if (std::any_of(value.begin(), value.end(), is_control)) {
        add_fault(node, fmt::format("{} holds a control character", entry.name()));
      } else if (!is_utf8(value)) {
        add_fault(node, fmt::format("{} is no UTF-8; write the file in UTF-8", entry.name()));
      }
    }
    for (const auto& child : node.children()) {
      if (child.type() == pugi::node_element) check_attributes(child, depth + 1);
    }
  }

  void scan_content(const pugi::xml_node& node, Zone* zone)
  {
    const std::string_view tag = node.name();
    if (is_one_of(tag, {"zone", "AS"})) {
      scan_zone(node, zone);
    } else if (tag == "cluster") {
      scan_cluster(node, zone);
    } else if (tag == "trace") {
      scan_trace(node);
    } else if (tag == "trace_connect") {
      connects_.push_back(node);
    } else if (is_one_of(tag, {"storage", "storage_type", "mount", "include"})) {
      add_fault(node, fmt::format("SimGrid has no <{}> any more{}", tag,
                                  tag == "include" ? "" : "; write <disk> inside the host"));
    } else if (zone != nullptr) {
      scan_zone_content(node, tag, *zone);
    }
  }

  void scan_zone_content(const pugi::xml_node& node, std::string_view tag, Zone& zone)
  {
    if (tag == "host") {
      scan_host(node, zone);
    } else if (tag == "peer") {
      scan_peer(node, zone);
    } else if (tag == "cabinet") {
      scan_cabinet(node, zone);
    } else if (tag == "router") {
      if (has_all(node, {"id"})) add_netpoint(node, attribute(node, "id"), NetpointKind::Router);
    } else if (tag == "link") {
      scan_link(node, zone);
    } else if (tag == "backbone") {
      scan_backbone(node, zone);
    } else if (tag == "host_link") {
      if (has_all(node, {"id", "up", "down"}) && only_in(node, zone, "Cluster")) zone.host_links.push_back(node);
    } else if (is_one_of(tag, {"route", "zoneRoute", "ASroute", "bypassRoute", "bypassZoneRoute", "bypassASroute"})) {
      scan_route(node, tag, zone);
    }
  }

  bool only_in(const pugi::xml_node& node, const Zone& zone, const char* routing)
  {
    if (strcasecmp(zone.routing.c_str(), routing) == 0) return true;
    add_fault(node, fmt::format("belongs into a zone of routing {}; zone {} has routing {}", routing, zone.name,
                                zone.routing));
    return false;
  }

  Zone new_zone(const pugi::xml_node& node, const Zone* parent, const Props& props)
  {
    Zone zone;
    zone.name = attribute(node, "id");
    zone.index = zones_++;
    zone.props = props;
    zone.site = props.site ? *props.site : parent == nullptr ? "" : parent->site;
    check_flows(node, props, {});
    if (const auto bytes = in_flight(props, {})) scan_.zone_in_flight[zone.name] = *bytes;
    return zone;
  }

  void scan_zone(const pugi::xml_node& node, const Zone* parent)
  {
    if (!has_all(node, {"id", "routing"})) return;
    add_netpoint(node, attribute(node, "id"), NetpointKind::Zone);
    Zone zone = new_zone(node, parent, read_props(node, PropHolder::Zone));
    zone.routing = attribute(node, "routing");
    const std::vector<std::string> routings = {"Cluster", "Dijkstra", "DijkstraCache", "Floyd",
                                               "Full",    "None",     "Vivaldi",       "Wifi"};
    if (std::none_of(routings.begin(), routings.end(), [&zone](const std::string& known) {
          return strcasecmp(known.c_str(), zone.routing.c_str()) == 0;
        })) {
      const auto nearest = nearest_word(zone.routing, routings);
      add_fault(node,
                fmt::format("unknown routing \"{}\"; {}", zone.routing,
                            nearest.empty() ? "write Full, Floyd, Dijkstra, DijkstraCache, Cluster, Vivaldi or None"
                                            : fmt::format("did you mean {}?", nearest)));
    }
    for (const auto& child : node.children()) scan_content(child, &zone);
    for (const auto& host_link : zone.host_links) check_host_link(host_link);
  }

  void check_host_link(const pugi::xml_node& node)
  {
    const std::string host = attribute(node, "id");
    const auto netpoint = netpoints_.find(host);
    if (netpoint == netpoints_.end() || netpoint->second.kind != NetpointKind::Host) {
      add_fault(node, "there is no host of this name");
    }
    for (const char* direction : {"up", "down"}) {
      const std::string link = attribute(node, direction);
      const auto known = links_.find(link);
      if (!knows_link(link)) {
        add_fault(node, fmt::format("{}: there is no link {}", direction, link));
      } else if (known != links_.end() && known->second.split_duplex) {
        add_fault(node, fmt::format("{}: the link {} is split-duplex; write {}_{}", direction, link, link,
                                    direction == std::string_view("up") ? "UP" : "DOWN"));
      }
    }
  }

  /// The power state that a host starts in. SimGrid's default is written "0.0".
  std::size_t power_state(const pugi::xml_node& node)
  {
    const std::string text = node.attribute("pstate") ? attribute(node, "pstate") : "0";
    const auto state = whole_number(text == "0.0" ? "0" : text);
    if (!state) add_fault(node, fmt::format("pstate \"{}\" is no whole number", text));
    return state.value_or(0);
  }

  void scan_host(const pugi::xml_node& node, const Zone& zone)
  {
    if (!has_all(node, {"id", "speed"})) {
      add_netpoint(node, attribute(node, "id"), NetpointKind::Host);  // so that no route misses it
      return;
    }
    check_speeds(node, power_state(node));
    check_cores(node);
    if (!attribute(node, "coordinates").empty()) check_coordinates(node);
    read_host_profiles(node);
    for (const auto& disk : node.children("disk")) {
      for (const char* rate : {"read_bw", "write_bw"}) {
        if (has_all(disk, {rate})) bandwidth(disk, rate);
      }
      read_props(disk, std::nullopt);
    }
    add_host(node, attribute(node, "id"), zone, read_props(node, PropHolder::Host));
  }

  void scan_peer(const pugi::xml_node& node, const Zone& zone)
  {
    if (!has_all(node, {"id", "speed", "bw_in", "bw_out"}) || !only_in(node, zone, "Vivaldi")) return;
    const std::string name = attribute(node, "id");
    check_speeds(node, 0);
    check_coordinates(node);
    read_host_profiles(node);
    add_host(node, name, zone, {});
    add_link(node, "link_" + name + "_UP", Seconds(0), bandwidth(node, "bw_out"), false);
    add_link(node, "link_" + name + "_DOWN", Seconds(0), bandwidth(node, "bw_in"), false);
  }

  std::vector<std::uint64_t> radical(const pugi::xml_node& node)
  {
    try {
      return numbers_of_radical(attribute(node, "radical"), most_hosts - std::min(most_hosts, scan_.hosts.size()));
    } catch (const std::invalid_argument& fault) {
      add_fault(node, fmt::format("radical {}", fault.what()));
      return {};
    }
  }

  void scan_cabinet(const pugi::xml_node& node, const Zone& zone)
  {
    if (!has_all(node, {"id", "prefix", "suffix", "radical", "speed", "bw", "lat"}) || !only_in(node, zone, "Cluster"))
      return;
    check_speeds(node, 0);
    const BytesPerSecond rate = bandwidth(node, "bw");
    const Seconds delay = latency(node, "lat");
    for (const auto number : radical(node)) {
      const std::string host = fmt::format("{}{}{}", attribute(node, "prefix"), number, attribute(node, "suffix"));
      add_host(node, host, zone, {});
      add_link(node, "link_" + host + "_UP", delay, rate, false);
      add_link(node, "link_" + host + "_DOWN", delay, rate, false);
    }
  }

  void scan_cluster(const pugi::xml_node& node, const Zone* parent)
  {
    if (!has_all(node, {"id", "prefix", "suffix", "radical", "speed", "bw", "lat"})) return;
    const std::string id = attribute(node, "id");
    add_netpoint(node, id, NetpointKind::Zone);
    const Props props = read_props(node, PropHolder::Cluster);
    const Zone zone = new_zone(node, parent, props);
    check_speeds(node, 0);
    check_cores(node);
    const BytesPerSecond rate = bandwidth(node, "bw");
    const Seconds delay = latency(node, "lat");
    const auto backbone = made_link(node, "bb_bw", "bb_lat");
    const auto limiter = made_link(node, "limiter_link", "");
    const auto loopback = made_link(node, "loopback_bw", "loopback_lat");

    auto numbers = radical(node);
    const std::string topology = attribute(node, "topology");
    const bool flat = topology.empty() || topology == "FLAT";
    if (!flat) {
      topologies_.push_back(id);
      const double places = check_topology(node, topology);
      if (places > static_cast<double>(numbers.size())) {
        if (!numbers.empty()) {
          add_fault(node, fmt::format("the topology has {:.0f} places for hosts and the radical makes only {}", places,
                                      numbers.size()));
        }
      } else {
        numbers.resize(static_cast<std::size_t>(places));
      }
    }
    const std::string sharing = attribute(node, "sharing_policy");
    const bool split_duplex = sharing.empty() || is_one_of(sharing, {"SPLITDUPLEX", "FULLDUPLEX"});
    if (flat && backbone) add_link(node, id + "_backbone", backbone->latency, backbone->bandwidth, false);
    for (const auto number : numbers) {
      add_host(node, fmt::format("{}{}{}", attribute(node, "prefix"), number, attribute(node, "suffix")), zone, props);
      if (!flat) continue;
      const std::string link = fmt::format("{}_link_{}", id, number);
      add_link(node, link, delay, rate, split_duplex);
      if (loopback) add_link(node, link + "_loopback", loopback->latency, loopback->bandwidth, false);
      if (limiter) add_link(node, link + "_limiter", limiter->latency, limiter->bandwidth, false);
    }
    if (!flat) return;
    const std::string router = attribute(node, "router_id");
    add_netpoint(node, router.empty() ? attribute(node, "prefix") + id + "_router" + attribute(node, "suffix") : router,
                 NetpointKind::Router);
  }

  /// How many hosts a topology has places for; 0 after a fault. The forms are those of SimGrid's TorusZone ("3,2,2"),
  /// FatTreeZone ("2;4,4;1,2;1,2") and DragonflyZone ("3,4;3,2;3,1;2").
  double check_topology(const pugi::xml_node& node, const std::string& topology)
  {
    const std::string text = attribute(node, "topo_parameters");
    const auto refuse = [&](const char* form) {
      add_fault(node, fmt::format("topo_parameters \"{}\" do not make a {}", text, form));
      return 0.0;
    };
    std::vector<std::vector<double>> groups;
    double elements = 1;
    for (const auto& group : split(text, ";")) {
      groups.emplace_back();
      for (const auto& part : split(group, ",")) {
        groups.back().push_back(static_cast<double>(whole_number(trimmed(part)).value_or(0)));
        elements *= groups.back().back();
      }
    }
    if (elements <= 0) return refuse("topology; it is made of whole numbers from 1, such as \"3,2,2\"");
    if (elements > most_topology) return refuse("topology that fits: it has more than 1,000,000 links");
    const auto product = [](const std::vector<double>& factors) {
      double result = 1;
      for (const double factor : factors) result *= factor;
      return result;
    };
    if (topology == "TORUS") {
      return groups.size() == 1 ? product(groups[0]) : refuse("torus; write its dimensions, such as \"3,2,2\"");
    }
    if (topology == "FAT_TREE") {
      const bool whole = groups.size() == 4 && groups[0].size() == 1 &&
                         std::all_of(groups.begin() + 1, groups.end(), [&groups](const std::vector<double>& group) {
                           return static_cast<double>(group.size()) == groups[0][0];
                         });
      return whole ? product(groups[1])
                   : refuse("fat tree; write levels;down;up;parallel links, such as \"2;4,4;1,2;1,2\"");
    }
    if (topology == "DRAGONFLY") {
      const bool whole = groups.size() == 4 && groups[0].size() == 2 && groups[1].size() == 2 &&
                         groups[2].size() == 2 && groups[3].size() == 1;
      return whole
                 ? groups[0][0] * groups[1][0] * groups[2][0] * groups[3][0]
                 : refuse("dragonfly; write groups,links;chassis,links;routers,links;nodes, such as \"3,4;3,2;3,1;2\"");
    }
    add_fault(node, fmt::format("unknown topology \"{}\"; write FLAT, TORUS, FAT_TREE or DRAGONFLY", topology));
    return 0;
  }

  void scan_link(const pugi::xml_node& node, const Zone& zone)
  {
    if (!has_all(node, {"id", "bandwidth", "latency"})) {
      add_link(node, attribute(node, "id"), Seconds(0), BytesPerSecond(1), false);  // so that no route misses it
      return;
    }
    const std::string name = attribute(node, "id");
    const std::string sharing = attribute(node, "sharing_policy");
    BytesPerSecond rate;
    for (const auto& text : split(attribute(node, "bandwidth"), sharing == "WIFI" ? ";," : "")) {
      rate = BytesPerSecond(quantity(node, "bandwidth", text, bandwidth_units(), Least::MoreThanZero, 1));
    }
    const Seconds delay = latency(node, "latency");
    add_link(node, name, delay, rate, is_one_of(sharing, {"SPLITDUPLEX", "FULLDUPLEX"}));
    read_file_attribute(node, "bandwidth_file", ProfileKind::Bandwidth);
    read_file_attribute(node, "latency_file", ProfileKind::Latency);
    read_file_attribute(node, "state_file", ProfileKind::State);

    const Props props = read_props(node, PropHolder::Link);
    check_flows(node, props, zone.props);
    if (!props.window && !props.flows) return;  // what its zone says is enough
    if (const auto bytes = in_flight(props, zone.props)) {
      for (const auto& part : parts_of_link(name)) scan_.link_in_flight[part] = *bytes;
    }
  }

  void scan_backbone(const pugi::xml_node& node, const Zone& zone)
  {
    if (!has_all(node, {"id", "bandwidth", "latency"}) || !only_in(node, zone, "Cluster")) return;
    const BytesPerSecond rate = bandwidth(node, "bandwidth");
    add_link(node, attribute(node, "id"), latency(node, "latency"), rate, false);
  }

  void scan_route(const pugi::xml_node& node, std::string_view tag, Zone& zone)
  {
    const bool between_zones = is_one_of(tag, {"zoneRoute", "ASroute", "bypassZoneRoute", "bypassASroute"});
    if (!has_all(node, {"src", "dst"})) return;
    if (between_zones && !has_all(node, {"gw_src", "gw_dst"})) return;
    for (const char* end : {"src", "dst", "gw_src", "gw_dst"}) {
      const auto entry = node.attribute(end);
      if (entry && !netpoints_.contains(entry.value())) {
        add_fault(node, fmt::format("{} {}: there is no host, router or zone of this name above", end, entry.value()));
      }
    }
    if (!tag.starts_with("bypass")) check_route_is_new(node, zone);
    for (const auto& part : node.children("link_ctn")) check_route_link(node, part);
  }

  void check_route_is_new(const pugi::xml_node& node, Zone& zone)
  {
    const auto from = netpoints_.find(attribute(node, "src"));
    const auto to = netpoints_.find(attribute(node, "dst"));
    if (from == netpoints_.end() || to == netpoints_.end()) return;
    const auto add = [&](const auto& begin, const auto& end) {
      const std::uint64_t ends = begin->second.number << 32 | end->second.number;
      const auto [known, added] = zone.routes.try_emplace(ends, line_of(node));
      if (!added) {
        add_fault(node,
                  fmt::format("the route from {} to {} is already there in line {} (routes go both ways unless they "
                              "say symmetrical=\"NO\")",
                              begin->first, end->first, known->second));
      }
      return added;
    };
    const bool both_ways = !is_one_of(attribute(node, "symmetrical"), {"NO", "no"}) && from != to;
    if (add(from, to) && both_ways) add(to, from);
  }

  void check_route_link(const pugi::xml_node& route, const pugi::xml_node& part)
  {
    const std::string link = attribute(part, "id");
    const auto refuse = [&](const std::string& what) {
      add_fault(line_of(part), fmt::format("{} from {} to {}: {}", route.name(), attribute(route, "src"),
                                           attribute(route, "dst"), what));
    };
    const auto known = links_.find(link);
    if (known == links_.end()) {
      if (!knows_link(link)) refuse(fmt::format("there is no link {} above", link));
      return;
    }
    const bool directed = is_one_of(attribute(part, "direction"), {"UP", "DOWN"});
    if (known->second.split_duplex && !directed) {
      refuse(fmt::format("the link {} is split-duplex; add direction=\"UP\" or \"DOWN\"", link));
    } else if (!known->second.split_duplex && directed) {
      refuse(fmt::format("the link {} is not split-duplex and has no direction", link));
    }
  }

  const std::string& text_;
  const std::string& name_;
  const ProfileReader& read_profile_;
  std::vector<std::size_t> newlines_;
  std::vector<std::pair<int, std::string>> faults_;
  PlatformScan scan_;
  std::size_t zones_ = 0;
  std::unordered_map<std::string, Netpoint> netpoints_;
  std::unordered_map<std::string, LinkFacts> links_;
  std::vector<std::string> topologies_;  // ids of clusters that name their links by rules of SimGrid's
  std::unordered_map<std::string, Trace> traces_;
  std::unordered_map<std::string, int> profile_names_;
  bool latency_changes_ = false;
  std::vector<pugi::xml_node> connects_;
  std::set<std::pair<std::string, std::string>> connections_;  // kind and trace
};

}  // namespace

PlatformScan scan_platform(const std::string& text, const std::string& name, const ProfileReader& read_profile)
{
  return Scanner(text, name, read_profile).scan();
}

}  // namespace isobar::sim

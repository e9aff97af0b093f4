#include "sim/scan/prescan.hpp"

#include "core/base/file_kind.hpp"
#include "core/errors.hpp"
#include "core/utf8.hpp"
#include "sim/scan/platform_names.hpp"
#include "sim/scan/profile_scan.hpp"
#include "sim/scan/radical.hpp"
#include "sim/scan/xml_element.hpp"
#include "sim/scan/zone_content.hpp"
#include "sim/scan/zone_tree.hpp"

#include <fmt/format.h>

#include <strings.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <pugixml.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace isobar::sim {

namespace {

/// How deep elements may be nested.
constexpr int most_nesting = 64;

/// The zone around a topology at the top.
constexpr const char* zone_of_topology = "__topology__";

/// Visits the elements of a platform file in the order in which SimGrid reads them.
class Scanner {
 public:
  Scanner(const std::string& text, const std::string& name, const ProfileReader& read_profile)
      : text_(text), reader_(text, name), names_(reader_), profiles_(reader_, names_, read_profile, scan_)
  {
  }

  PlatformScan scan()
  {
    pugi::xml_document document;
    // As bytes: another encoding would shift the offsets that lines are computed from.
    const auto parsed = document.load_buffer(text_.data(), text_.size(), pugi::parse_default | pugi::parse_doctype,
                                             pugi::encoding_utf8);
    if (!parsed) {
      reader_.faults().add(reader_.line_at(parsed.offset), "", fmt::format("not XML: {}", parsed.description()));
    } else {
      scan_root(document);
    }
    reader_.faults().throw_if_any();
    scan_.text_to_load = text_;
    for (const auto& config : document.document_element().children("config")) blank(config);
    if (top_topology_) put_into_zone(top_topology_);
    return std::move(scan_);
  }

 private:
  using NetpointKind = PlatformNames::NetpointKind;
  struct Zone {
    std::string name;
    std::string routing;
    std::size_t index = 0;
    Props props;
    std::string site;
    std::vector<pugi::xml_node> host_links;
    PlatformNames::RouteLines routes;
  };

  void add_host(const pugi::xml_node& node, const Zone& zone, ScannedHost host)
  {
    const std::string& name = host.name;
    names_.add_netpoint(node, name, NetpointKind::Host);
    if (scan_.hosts.size() == most_hosts) {
      reader_.add_fault(node, fmt::format("more hosts than the {} that a platform may have", most_hosts));
    }
    if (scan_.hosts.size() >= most_hosts) return;
    host.line = reader_.line_of(node);
    host.zone = zone.index;
    tree_.add_host(name, zone.index);
    if (!host.props.site && !zone.site.empty()) host.props.site = zone.site;
    scan_.hosts.push_back(std::move(host));
  }

  void add_router(const pugi::xml_node& node, const std::string& name, const Zone& zone)
  {
    names_.add_netpoint(node, name, NetpointKind::Router);
    tree_.add_router(name, zone.index);
  }

  // Props.

  Props read_props(const pugi::xml_node& node, PropHolder holder)
  {
    Props props;
    std::set<std::string> seen;
    for (const auto& prop : node.children("prop")) {
      const std::string id = attribute(prop, "id");
      if (!seen.insert(id).second) {
        reader_.faults().add(reader_.line_of(prop), "",
                             fmt::format("{} {}: prop {}: given twice; SimGrid would keep the first", node.name(),
                                         attribute(node, "id"), id));
      } else if (!is_foreign_prop(holder, id, attribute(prop, "value"))) {
        try {
          read_prop(props, holder, id, attribute(prop, "value"));
        } catch (const std::invalid_argument& fault) {
          reader_.faults().add(reader_.line_of(prop), "",
                               fmt::format("{} {}: prop {}: {}", node.name(), attribute(node, "id"), id, fault.what()));
        }
      }
    }
    return props;
  }
  /// Keeps what props of other programs say that Isobar does not read.
  static void note_foreign_props(const pugi::xml_node& node, ScannedHost& host)
  {
    for (const auto& prop : node.children("prop")) {
      const std::string id = attribute(prop, "id");
      if (is_foreign_memory(id)) host.memory_prop = id;
      if (is_foreign_gpu(id)) host.has_foreign_gpus = true;
    }
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
      reader_.add_fault(node, "prop flows has no effect without the prop window, the bytes in flight of each flow");
    }
  }

  /// Replaces a child of the root in `text_to_load` by blanks, up to the next element.
  void blank(const pugi::xml_node& node)
  {
    auto next = node.next_sibling();
    while (next && next.type() != pugi::node_element) next = next.next_sibling();
    if (!next) return;                                                     // SimGrid refuses one at the end
    const auto begin = static_cast<std::size_t>(node.offset_debug()) - 1;  // the offset is that of its name
    const auto end = static_cast<std::size_t>(next.offset_debug()) - 1;
    std::replace_if(
        scan_.text_to_load.begin() + static_cast<std::ptrdiff_t>(begin),
        scan_.text_to_load.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c != '\n'; }, ' ');
  }

  /// Puts a child of the root, and what follows it there, into a zone.
  void put_into_zone(const pugi::xml_node& node)
  {
    std::string& text = scan_.text_to_load;
    text.insert(text.rfind("</platform"), "</zone>");
    text.insert(static_cast<std::size_t>(node.offset_debug()) - 1,
                fmt::format("<zone id=\"{}\" routing=\"Full\">", zone_of_topology));
  }

  void ignore(const pugi::xml_node& node, const std::string& note)
  {
    scan_.ignored.push_back({reader_.line_of(node), note});
  }

  // Elements.

  void scan_root(const pugi::xml_document& document)
  {
    const auto root = document.document_element();
    if (std::string_view(root.name()) != "platform") {
      reader_.faults().add(
          reader_.line_of(root), "",
          fmt::format("the root is <{}>; a platform file has <platform version=\"4.1\">", root.name()));
      return;
    }
    const auto has_doctype = [](const pugi::xml_node& node) { return node.type() == pugi::node_doctype; };
    if (!document.find_child(has_doctype)) {
      reader_.faults().add(
          reader_.line_of(root), "",
          "no DOCTYPE above; SimGrid requires <!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">");
    }
    check_version(root);
    check_attributes(root, 0);
    if (!reader_.faults().empty()) return;
    std::optional<int> top_zone;
    for (const auto& child : root.children()) {
      const std::string_view tag = child.name();
      if (tag == "config") {
        if (top_zone)
          reader_.add_fault(child, fmt::format("comes after the zone of line {}; write it first", *top_zone));
        if (scan_.ignored.empty()) ignore(child, "<config> is ignored; Isobar sets SimGrid's options itself");
      } else if (is_one_of(tag, {"zone", "AS", "cluster"})) {
        if (top_zone) {
          reader_.add_fault(
              child, fmt::format("a second zone at the top; the one in line {} must contain all others", *top_zone));
          return;
        }
        top_zone = reader_.line_of(child);
        scan_content(child, nullptr);
      } else if (is_one_of(tag, {"actor", "process"})) {
        reader_.add_fault(child, "actors do not belong in a platform file; Isobar runs the plan");
      } else {
        scan_content(child, nullptr);
      }
    }
    if (!top_zone) reader_.faults().add(reader_.line_of(root), "", "no <zone>; a platform needs one at the top");
    for (const auto& connection : connects_) profiles_.connect_trace(connection);
    profiles_.apply_to_windows();
    find_inner_gateways();
  }

  void find_inner_gateways()
  {
    for (const auto& route : zone_routes_) {
      for (const auto& [end, gateway] : {std::pair("src", "gw_src"), std::pair("dst", "gw_dst")}) {
        const auto inner = tree_.inner_zone_of_gateway(attribute(route, end), attribute(route, gateway));
        if (!inner) continue;
        scan_.inner_gateways.push_back(
            {reader_.line_of(route),
             fmt::format("{} from {} to {}: {} {} is in the zone {} inside {}", route.name(),
                         shown(attribute(route, "src")), shown(attribute(route, "dst")), gateway,
                         shown(attribute(route, gateway)), shown(*inner), shown(attribute(route, end)))});
      }
    }
  }

  void check_version(const pugi::xml_node& root)
  {
    const std::string version = attribute(root, "version");
    char* end = nullptr;
    const double number = std::strtod(version.c_str(), &end);
    const bool readable = !version.empty() && *end == '\0' && std::isfinite(number) && number > 0 && number < 1000;
    const long hundredths = readable ? std::lround(100 * number) : 0;
    if (hundredths < 400 || hundredths > 410) {
      reader_.faults().add(reader_.line_of(root), "",
                           fmt::format("platform version \"{}\"; SimGrid reads 4 and 4.1", version));
    }
  }

  /// Checks for attributes given twice, for characters that no name may have, and for too deep nesting.
  void check_attributes(const pugi::xml_node& node, int depth)
  {
    if (depth > most_nesting) {
      reader_.add_fault(node, fmt::format("nested deeper than {} elements", most_nesting));
      return;
    }
    std::set<std::string_view> seen;
    for (const auto& entry : node.attributes()) {
      if (!seen.insert(entry.name()).second) reader_.add_fault(node, fmt::format("{} is given twice", entry.name()));
      const std::string_view value = entry.value();
      if (std::any_of(value.begin(), value.end(), is_control)) {
        reader_.add_fault(node, fmt::format("{} holds a control character", entry.name()));
      } else if (!is_utf8(value)) {
        reader_.add_fault(node, fmt::format("{} is not UTF-8; write the file in UTF-8", entry.name()));
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
      profiles_.scan_trace(node);
    } else if (tag == "trace_connect") {
      connects_.push_back(node);
    } else if (is_one_of(tag, {"storage", "storage_type", "mount", "include"})) {
      reader_.add_fault(node, fmt::format("SimGrid no longer has <{}>{}", tag,
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
      if (reader_.has_all(node, {"id"})) add_router(node, attribute(node, "id"), zone);
    } else if (tag == "link") {
      scan_link(node, zone);
    } else if (tag == "backbone") {
      scan_backbone(node, zone);
    } else if (tag == "host_link") {
      if (reader_.has_all(node, {"id", "up", "down"}) && only_in(node, zone, "Cluster"))
        zone.host_links.push_back(node);
    } else if (is_one_of(tag, {"route", "zoneRoute", "ASroute", "bypassRoute", "bypassZoneRoute", "bypassASroute"})) {
      names_.check_route(node, zone.routes);
      if (node.attribute("gw_src")) zone_routes_.push_back(node);
    }
  }

  bool only_in(const pugi::xml_node& node, const Zone& zone, const char* routing)
  {
    if (strcasecmp(zone.routing.c_str(), routing) == 0) return true;
    reader_.add_fault(node, fmt::format("belongs in a zone with routing {}; zone {} has routing {}", routing, zone.name,
                                        zone.routing));
    return false;
  }

  Zone new_zone(const pugi::xml_node& node, const Zone* parent, const Props& props)
  {
    Zone zone;
    zone.name = attribute(node, "id");
    zone.index = zones_++;
    tree_.add_zone(zone.name, parent == nullptr ? std::nullopt : std::optional(parent->index));
    zone.props = props;
    zone.site = props.site ? *props.site : parent == nullptr ? "" : parent->site;
    check_flows(node, props, {});
    if (const auto bytes = in_flight(props, {})) scan_.zone_in_flight[zone.name] = *bytes;
    return zone;
  }

  void scan_zone(const pugi::xml_node& node, const Zone* parent)
  {
    if (!reader_.has_all(node, {"id", "routing"})) return;
    names_.add_netpoint(node, attribute(node, "id"), NetpointKind::Zone);
    Zone zone = new_zone(node, parent, read_props(node, PropHolder::Zone));
    zone.routing = attribute(node, "routing");
    const std::vector<std::string> routings = {"Cluster", "Dijkstra", "DijkstraCache", "Floyd",
                                               "Full",    "None",     "Vivaldi",       "Wifi"};
    if (std::none_of(routings.begin(), routings.end(), [&zone](const std::string& known) {
          return strcasecmp(known.c_str(), zone.routing.c_str()) == 0;
        })) {
      const auto nearest = nearest_word(zone.routing, routings);
      reader_.add_fault(
          node, fmt::format("unknown routing \"{}\"; {}", zone.routing,
                            nearest.empty() ? "write Full, Floyd, Dijkstra, DijkstraCache, Cluster, Vivaldi or None"
                                            : fmt::format("did you mean {}?", nearest)));
    }
    check_zone_content(node, reader_);
    const std::size_t first_host = scan_.hosts.size();
    for (const auto& child : node.children()) scan_content(child, &zone);
    std::set<std::string> joined;
    for (const auto& host_link : zone.host_links) {
      names_.check_host_link(host_link);
      joined.insert(attribute(host_link, "id"));
    }
    for (std::size_t i = first_host; i < scan_.hosts.size(); ++i) {
      if (joined.contains(scan_.hosts[i].name)) scan_.hosts[i].lacks_host_link = false;
    }
  }

  void scan_host(const pugi::xml_node& node, const Zone& zone)
  {
    if (!reader_.has_all(node, {"id", "speed"})) {
      names_.add_netpoint(node, attribute(node, "id"), NetpointKind::Host);  // so that routes find it
      return;
    }
    refuse_dropped_attributes(node);
    ScannedHost host;
    host.name = attribute(node, "id");
    host.lacks_host_link = strcasecmp(zone.routing.c_str(), "Cluster") == 0;
    note_foreign_props(node, host);
    host.speeds = reader_.host_speeds(node);
    host.computes = host.speeds.at(reader_.power_state(node, host.speeds.size())).value > 0;
    reader_.check_cores(node);
    if (!attribute(node, "coordinates").empty()) reader_.check_coordinates(node);
    profiles_.scan_host(node);
    for (const auto& disk : node.children("disk")) host.disks.push_back(scan_disk(disk));
    host.props = read_props(node, PropHolder::Host);
    add_host(node, zone, std::move(host));
  }

  /// Attributes of SimGrid 3.12 and before, with what to write in their place.
  void refuse_dropped_attributes(const pugi::xml_node& node)
  {
    const std::string tag = node.name();
    if (node.attribute("state")) {
      reader_.add_fault(node,
                        fmt::format("state=\"{}\": SimGrid no longer has this attribute; remove it, and the {} if "
                                    "it is off, or write a profile and name it in state_file",
                                    attribute(node, "state"), tag));
    }
    if (node.attribute("availability")) {
      reader_.add_fault(node,
                        fmt::format("availability=\"{}\": SimGrid no longer has this attribute; multiply the {} by "
                                    "it, or write a profile and name it in {}_file",
                                    attribute(node, "availability"), tag == "host" ? "speed" : "bandwidth",
                                    tag == "host" ? "speed" : "bandwidth"));
    }
  }

  ScannedDisk scan_disk(const pugi::xml_node& node)
  {
    const auto rate = [&](const char* name) {
      return reader_.has_all(node, {name}) ? reader_.bandwidth(node, name) : BytesPerSecond(1);
    };
    return {attribute(node, "id"), read_props(node, PropHolder::Disk).capacity, rate("read_bw"), rate("write_bw")};
  }

  void scan_peer(const pugi::xml_node& node, const Zone& zone)
  {
    if (!reader_.has_all(node, {"id", "speed", "bw_in", "bw_out"}) || !only_in(node, zone, "Vivaldi")) return;
    const std::string name = attribute(node, "id");
    const auto speeds = reader_.speeds(node);
    reader_.check_coordinates(node);
    profiles_.scan_host(node);
    add_host(node, zone, {.name = name, .speeds = speeds});
    names_.add_link(node, "link_" + name + "_UP", Seconds(0), reader_.bandwidth(node, "bw_out"), false);
    names_.add_link(node, "link_" + name + "_DOWN", Seconds(0), reader_.bandwidth(node, "bw_in"), false);
  }

  std::vector<std::uint64_t> radical(const pugi::xml_node& node)
  {
    try {
      return numbers_of_radical(attribute(node, "radical"), most_hosts - std::min(most_hosts, scan_.hosts.size()));
    } catch (const std::invalid_argument& fault) {
      reader_.add_fault(node, fmt::format("radical {}", fault.what()));
      return {};
    }
  }

  /// Number of hosts that a topology has; 0 after a fault.
  double places_of(const pugi::xml_node& node, const std::string& topology)
  {
    try {
      return places_of_topology(topology, attribute(node, "topo_parameters"));
    } catch (const std::invalid_argument& fault) {
      reader_.add_fault(node, fault.what());
      return 0;
    }
  }

  void scan_cabinet(const pugi::xml_node& node, const Zone& zone)
  {
    if (!reader_.has_all(node, {"id", "prefix", "suffix", "radical", "speed", "bw", "lat"}) ||
        !only_in(node, zone, "Cluster"))
      return;
    const auto speeds = reader_.speeds(node);
    const BytesPerSecond rate = reader_.bandwidth(node, "bw");
    const Seconds delay = reader_.latency(node, "lat");
    for (const auto number : radical(node)) {
      const std::string host = fmt::format("{}{}{}", attribute(node, "prefix"), number, attribute(node, "suffix"));
      add_host(node, zone, {.name = host, .speeds = speeds});
      names_.add_link(node, "link_" + host + "_UP", delay, rate, false);
      names_.add_link(node, "link_" + host + "_DOWN", delay, rate, false);
    }
  }

  void scan_cluster(const pugi::xml_node& node, const Zone* parent)
  {
    if (!reader_.has_all(node, {"id", "prefix", "suffix", "radical", "speed", "bw", "lat"})) return;
    const std::string id = attribute(node, "id");
    names_.add_netpoint(node, id, NetpointKind::Zone);
    const Props props = read_props(node, PropHolder::Cluster);
    const Zone zone = new_zone(node, parent, props);
    const auto speeds = reader_.speeds(node);
    reader_.check_cores(node);
    const BytesPerSecond rate = reader_.bandwidth(node, "bw");
    const Seconds delay = reader_.latency(node, "lat");
    const auto backbone = reader_.made_link(node, "bb_bw", "bb_lat");
    const auto limiter = reader_.made_link(node, "limiter_link");
    const auto loopback = reader_.made_link(node, "loopback_bw", "loopback_lat");

    auto numbers = radical(node);
    const std::string topology = attribute(node, "topology");
    const bool flat = topology.empty() || topology == "FLAT";
    if (!flat) {
      names_.add_topology(id);
      if (parent == nullptr) {
        names_.add_netpoint(node, zone_of_topology, NetpointKind::Zone);
        top_topology_ = node;
      }
      if (backbone) {
        ignore(node, fmt::format("cluster {}: bb_bw is ignored; SimGrid gives the topology {} no backbone", shown(id),
                                 topology));
      }
      const double places = places_of(node, topology);
      if (places > static_cast<double>(numbers.size())) {
        if (!numbers.empty()) {
          reader_.add_fault(node, fmt::format("the topology has {:.0f} places for hosts and the radical makes only {}",
                                              places, numbers.size()));
        }
      } else {
        numbers.resize(static_cast<std::size_t>(places));
      }
    }
    const std::string sharing = attribute(node, "sharing_policy");
    const bool split_duplex = sharing.empty() || is_one_of(sharing, {"SPLITDUPLEX", "FULLDUPLEX"});
    if (sharing == "FATPIPE") scan_.fat_pipe_clusters.push_back(id);
    if (flat && backbone) names_.add_link(node, id + "_backbone", backbone->latency, backbone->bandwidth, false);
    ScannedHost host{.props = props, .speeds = speeds};
    note_foreign_props(node, host);
    for (const auto number : numbers) {
      host.name = fmt::format("{}{}{}", attribute(node, "prefix"), number, attribute(node, "suffix"));
      add_host(node, zone, host);
      if (!flat) continue;
      const std::string link = fmt::format("{}_link_{}", id, number);
      names_.add_link(node, link, delay, rate, split_duplex);
      if (loopback) names_.add_link(node, link + "_loopback", loopback->latency, loopback->bandwidth, false);
      if (limiter) names_.add_link(node, link + "_limiter", limiter->latency, limiter->bandwidth, false);
    }
    if (!flat) return;
    const std::string router = attribute(node, "router_id");
    add_router(node, router.empty() ? attribute(node, "prefix") + id + "_router" + attribute(node, "suffix") : router,
               zone);
  }

  void scan_link(const pugi::xml_node& node, const Zone& zone)
  {
    if (!reader_.has_all(node, {"id", "bandwidth", "latency"})) {
      names_.add_link(node, attribute(node, "id"), Seconds(0), BytesPerSecond(1), false);  // so that routes find it
      return;
    }
    refuse_dropped_attributes(node);
    const std::string name = attribute(node, "id");
    const std::string sharing = attribute(node, "sharing_policy");
    BytesPerSecond rate;
    for (const auto& text : split(attribute(node, "bandwidth"), sharing == "WIFI" ? ";," : "")) {
      rate = reader_.bandwidth(node, "bandwidth", text);
    }
    const Seconds delay = reader_.latency(node, "latency");
    names_.add_link(node, name, delay, rate, is_one_of(sharing, {"SPLITDUPLEX", "FULLDUPLEX"}));
    profiles_.scan_link(node);

    const Props props = read_props(node, PropHolder::Link);
    check_flows(node, props, zone.props);
    if (!props.window && !props.flows) return;  // the props of its zone apply
    if (const auto bytes = in_flight(props, zone.props)) {
      for (const auto& part : names_.parts_of_link(name)) scan_.link_in_flight[part] = *bytes;
    }
  }

  void scan_backbone(const pugi::xml_node& node, const Zone& zone)
  {
    if (!reader_.has_all(node, {"id", "bandwidth", "latency"}) || !only_in(node, zone, "Cluster")) return;
    const BytesPerSecond rate = reader_.bandwidth(node, "bandwidth");
    names_.add_link(node, attribute(node, "id"), reader_.latency(node, "latency"), rate, false);
  }

  const std::string& text_;
  ElementReader reader_;
  PlatformNames names_;
  PlatformScan scan_;
  ProfileScan profiles_;
  std::size_t zones_ = 0;
  std::vector<pugi::xml_node> connects_;
  ZoneTree tree_;
  std::vector<pugi::xml_node> zone_routes_;
  pugi::xml_node top_topology_;  // a cluster with a topology that is in no zone; else empty
};

}  // namespace

PlatformScan scan_platform(const std::string& text, const std::string& name, const ProfileReader& read_profile)
{
  require_file_kind(FileKind::Platform, text, name);
  return Scanner(text, name, read_profile).scan();
}

}  // namespace isobar::sim

#include "sim/scan/profile_scan.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <pugixml.hpp>

namespace isobar::sim {

void ProfileScan::scan_host(const pugi::xml_node& node)
{
  for (const char* name : {"speed_file", "availability_file"}) scan_attribute(node, name, Kind::Speed);
  scan_attribute(node, "state_file", Kind::State);
}

void ProfileScan::scan_link(const pugi::xml_node& node)
{
  scan_attribute(node, "bandwidth_file", Kind::Bandwidth);
  scan_attribute(node, "latency_file", Kind::Latency);
  scan_attribute(node, "state_file", Kind::State);
}

void ProfileScan::scan_trace(const pugi::xml_node& node)
{
  if (!reader_.has_all(node, {"id", "periodicity"})) return;
  const std::string id = attribute(node, "id");
  const auto known = traces_.find(id);
  if (known != traces_.end()) {
    reader_.add_fault(node, fmt::format("the name is already taken in line {}", known->second.line));
    return;
  }
  char* end = nullptr;
  const std::string period_text = attribute(node, "periodicity");
  const double period = std::strtod(period_text.c_str(), &end);
  if (period_text.empty() || *end != '\0' || !std::isfinite(period)) {
    reader_.add_fault(node, fmt::format("periodicity \"{}\" is not a number of seconds", period_text));
    return;
  }
  std::optional<ProfileRange> range;
  const auto content = node.first_child();
  if (!attribute(node, "file").empty()) {
    range = read(node, attribute(node, "file"));
  } else if (content.type() == pugi::node_pcdata) {
    if (!lines_.try_emplace(id, reader_.line_of(node)).second) {
      reader_.add_fault(node, "a profile file has the same name; SimGrid would confuse the two");
    }
    range = range_of(content.value(), reader_.file(), reader_.line_of(content), period, reader_.line_of(content));
  } else {
    reader_.add_fault(node, "no file and no content");
  }
  traces_.emplace(id, Trace{reader_.line_of(node), range.value_or(ProfileRange{1, 1})});
}

void ProfileScan::connect_trace(const pugi::xml_node& node)
{
  if (!reader_.has_all(node, {"trace", "element"})) return;
  const std::string kind = node.attribute("kind") ? attribute(node, "kind") : "HOST_AVAIL";
  const std::string element = attribute(node, "element");
  const std::string id = attribute(node, "trace");
  const auto trace = traces_.find(id);
  if (trace == traces_.end() || trace->second.line > reader_.line_of(node)) {
    reader_.add_fault(node, fmt::format("there is no trace {} above", id));
    return;
  }
  if (!connections_.emplace(kind, id).second) {
    reader_.add_fault(node,
                      fmt::format("the trace {} is connected twice as {}; SimGrid would keep the first", id, kind));
    return;
  }
  if (!is_one_of(kind, {"HOST_AVAIL", "SPEED"})) {
    const bool known = is_one_of(kind, {"LINK_AVAIL", "BANDWIDTH", "LATENCY"});
    reader_.add_fault(node,
                      known ? "SimGrid no longer connects traces to links; name a file in the link's bandwidth_file, "
                              "latency_file or state_file"
                            : fmt::format("unknown kind \"{}\"; write SPEED or HOST_AVAIL", kind));
    return;
  }
  if (!names_.has_host(element)) {
    reader_.add_fault(node, fmt::format("there is no host {}", element));
    return;
  }
  if (kind == "SPEED") speed_up(trace->second.range.highest);
}

void ProfileScan::apply_to_windows()
{
  // SimGrid drops the cap of a window when the latency changes, and a window may be arbitrarily narrow.
  const bool windows = !scan_.link_in_flight.empty() || !scan_.zone_in_flight.empty();
  if (latency_changes_ && windows) speed_up(std::numeric_limits<double>::infinity());
}

void ProfileScan::scan_attribute(const pugi::xml_node& node, const char* name, Kind kind)
{
  const std::string file = attribute(node, name);
  if (file.empty()) return;
  const auto range = read(node, file);
  if (!range) return;
  if (kind == Kind::Speed) speed_up(range->highest);
  if (kind == Kind::Bandwidth || kind == Kind::Latency) apply_to_link(attribute(node, "id"), kind, *range);
}

std::optional<ProfileRange> ProfileScan::read(const pugi::xml_node& node, const std::string& file)
{
  const auto [known, added] = lines_.try_emplace(file, reader_.line_of(node));
  if (!added) {
    reader_.add_fault(node, fmt::format("the profile {} is already used in line {}; SimGrid reads a profile once", file,
                                        known->second));
    return std::nullopt;
  }
  const auto text = read_profile_(file);
  if (!text) {
    reader_.add_fault(node, fmt::format("the profile {} does not exist", file));
    return std::nullopt;
  }
  scan_.profiles.push_back(*text);
  return range_of(*text, file, 1, 0, reader_.line_of(node));
}

std::optional<ProfileRange> ProfileScan::range_of(const std::string& text, const std::string& name, int first_line,
                                                  double periodicity, int line)
{
  try {
    return scan_profile(text, name, first_line, periodicity);
  } catch (const InputError& fault) {
    reader_.faults().add(line, fault);
    return std::nullopt;
  }
}

void ProfileScan::apply_to_link(const std::string& name, Kind kind, const ProfileRange& range)
{
  const auto* link = names_.find_link(name);
  if (link == nullptr) return;
  for (const auto& part : names_.parts_of_link(name)) {
    scan_.profiled_links[part] = {link->latency, link->bandwidth};
  }
  if (kind == Kind::Bandwidth) speed_up(range.highest / link->bandwidth.value);
  if (kind == Kind::Latency) {
    latency_changes_ = true;
    if (link->latency.value > 0) speed_up(link->latency.value / range.lowest);
  }
}

void ProfileScan::speed_up(double factor)
{
  scan_.profile_speedup = std::max(scan_.profile_speedup, factor);
}

}  // namespace isobar::sim

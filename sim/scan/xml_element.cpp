#include "sim/scan/xml_element.hpp"

#include "sim/scan/radical.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <pugixml.hpp>
#include <stdexcept>

namespace isobar::sim {

std::string attribute(const pugi::xml_node& node, const char* name)
{
  return node.attribute(name).value();
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words)
{
  return std::find(words.begin(), words.end(), word) != words.end();
}

ElementReader::ElementReader(const std::string& text, const std::string& name) : name_(name), faults_(name)
{
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') newlines_.push_back(i);
  }
}

int ElementReader::line_at(std::ptrdiff_t offset) const
{
  const auto at = static_cast<std::size_t>(std::max<std::ptrdiff_t>(offset, 0));
  return static_cast<int>(std::lower_bound(newlines_.begin(), newlines_.end(), at) - newlines_.begin()) + 1;
}

int ElementReader::line_of(const pugi::xml_node& node) const
{
  return line_at(node.offset_debug());
}

void ElementReader::add_fault(const pugi::xml_node& node, const std::string& what)
{
  const std::string id = attribute(node, "id");
  faults_.add(line_of(node), id.empty() ? node.name() : fmt::format("{} {}", node.name(), id), what);
}

bool ElementReader::has_all(const pugi::xml_node& node, std::initializer_list<const char*> names)
{
  bool complete = true;
  for (const char* name : names) {
    if (node.attribute(name)) continue;
    add_fault(node, fmt::format("no {}", name));
    complete = false;
  }
  return complete;
}

double ElementReader::quantity(const pugi::xml_node& node, const char* name, const std::string& text,
                               const SimGridUnits& units, Least least, double fallback)
{
  try {
    const double value = value_with_unit(text, units);
    if (value < 0) throw std::invalid_argument(fmt::format("\"{}\" is less than 0", text));
    if (value > 0 || least == Least::Zero) return value;
    throw std::invalid_argument(fmt::format("\"{}\" is not greater than 0", text));
  } catch (const std::invalid_argument& fault) {
    add_fault(node, fmt::format("{} {}", name, fault.what()));
    return fallback;
  }
}

BytesPerSecond ElementReader::bandwidth(const pugi::xml_node& node, const char* name, const std::string& text)
{
  return BytesPerSecond(quantity(node, name, text, bandwidth_units(), Least::MoreThanZero, 1));
}

BytesPerSecond ElementReader::bandwidth(const pugi::xml_node& node, const char* name)
{
  return bandwidth(node, name, attribute(node, name));
}

Seconds ElementReader::latency(const pugi::xml_node& node, const char* name)
{
  return Seconds(quantity(node, name, attribute(node, name), time_units(), Least::Zero, 0));
}

std::optional<PlatformScan::Link> ElementReader::made_link(const pugi::xml_node& node, const char* bandwidth_name,
                                                           const char* latency_name)
{
  const auto value = [&](const char* name, const SimGridUnits& units) {
    const std::string text = attribute(node, name);
    return text.empty() ? 0 : quantity(node, name, text, units, Least::Zero, 1);
  };
  const BytesPerSecond rate(value(bandwidth_name, bandwidth_units()));
  const Seconds delay(latency_name == nullptr ? 0 : value(latency_name, time_units()));
  if (delay.value > 0 && rate.value <= 0) {
    add_fault(node, fmt::format("{} without a {}", latency_name, bandwidth_name));
  }
  if (rate.value <= 0) return std::nullopt;
  return PlatformScan::Link{delay, rate};
}

std::size_t ElementReader::power_state(const pugi::xml_node& node, std::size_t states)
{
  const std::string text = node.attribute("pstate") ? attribute(node, "pstate") : "0";
  const auto state = whole_number(text == "0.0" ? "0" : text);
  if (!state) {
    add_fault(node, fmt::format("pstate \"{}\" is not a whole number", text));
  } else if (*state >= states) {
    add_fault(node, fmt::format("pstate {} is not one of its {} speeds, counted from 0", *state, states));
  }
  return state && *state < states ? *state : 0;
}

std::vector<FlopsPerSecond> ElementReader::speeds(const pugi::xml_node& node)
{
  return read_speeds(node, Least::MoreThanZero);
}

std::vector<FlopsPerSecond> ElementReader::host_speeds(const pugi::xml_node& node)
{
  return read_speeds(node, Least::Zero);
}

std::vector<FlopsPerSecond> ElementReader::read_speeds(const pugi::xml_node& node, Least least_of_first)
{
  std::vector<FlopsPerSecond> speeds;
  for (const auto& text : split(attribute(node, "speed"), ",")) {
    const Least least = speeds.empty() ? least_of_first : Least::Zero;
    speeds.emplace_back(quantity(node, "speed", trimmed(text), speed_units(), least, 1));
  }
  return speeds;
}

void ElementReader::check_cores(const pugi::xml_node& node)
{
  const auto core = node.attribute("core");
  if (core && whole_number(core.value()).value_or(0) < 1) {
    add_fault(node, fmt::format("core \"{}\" is not a number of cores; write a whole number, 1 or more", core.value()));
  }
}

void ElementReader::check_coordinates(const pugi::xml_node& node)
{
  const std::string text = attribute(node, "coordinates");
  const auto parts = split(text, " ");
  const bool numbers = std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    char* end = nullptr;
    return std::isfinite(std::strtod(part.c_str(), &end)) && end != part.c_str() && *end == '\0';
  });
  if (parts.size() != 3 || !numbers) {
    add_fault(node, fmt::format("coordinates \"{}\" are not the three numbers of a Vivaldi zone, such as \"10 20 0.5\"",
                                text));
  }
}

}  // namespace isobar::sim

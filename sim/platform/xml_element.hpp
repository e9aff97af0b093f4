#pragma once

#include "core/base/document.hpp"
#include "core/units.hpp"
#include "sim/platform/prescan.hpp"
#include "sim/platform/simgrid_units.hpp"

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pugi {
class xml_node;
}

namespace isobar::sim {

/// The value of an attribute, "" without it.
std::string attribute(const pugi::xml_node& node, const char* name);
bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words);

/// Reads the attributes of the elements of one platform file and collects the faults of the file. A value with a fault
/// is replaced by one that causes no other.
class ElementReader {
 public:
  /// `text` is what the elements were parsed from, as UTF-8.
  ElementReader(const std::string& text, const std::string& name);

  const std::string& file() const { return name_; }
  /// Lines count from 1. O(log(lines)).
  int line_at(std::ptrdiff_t offset) const;
  int line_of(const pugi::xml_node& node) const;

  FaultList& faults() { return faults_; }
  /// Adds a fault that names the element and its id.
  void add_fault(const pugi::xml_node& node, const std::string& what);
  /// Whether SimGrid finds all attributes that it requires; a fault for each that is absent.
  bool has_all(const pugi::xml_node& node, std::initializer_list<const char*> names);

  BytesPerSecond bandwidth(const pugi::xml_node& node, const char* name);
  /// The same of a text that is a part of the attribute.
  BytesPerSecond bandwidth(const pugi::xml_node& node, const char* name, const std::string& text);
  Seconds latency(const pugi::xml_node& node, const char* name);
  /// The link that an element makes by two of its attributes, or nothing where they are absent or 0. Without
  /// `latency_name` the link has latency 0.
  std::optional<PlatformScan::Link> made_link(const pugi::xml_node& node, const char* bandwidth_name,
                                              const char* latency_name = nullptr);

  /// The power state that a host starts in.
  std::size_t power_state(const pugi::xml_node& node);
  /// The speeds of all power states; those that are not in use may be 0 (a host that boots).
  void check_speeds(const pugi::xml_node& node, std::size_t used);
  /// The speed of a host in the power state that it starts in; 0 is one that computes nothing.
  double host_speed(const pugi::xml_node& node);
  void check_cores(const pugi::xml_node& node);
  void check_coordinates(const pugi::xml_node& node);

 private:
  enum class Least { Zero, MoreThanZero };
  double used_speed(const pugi::xml_node& node, std::size_t used, Least least);
  double quantity(const pugi::xml_node& node, const char* name, const std::string& text, const SimGridUnits& units,
                  Least least, double fallback);

  std::string name_;
  std::vector<std::size_t> newlines_;
  FaultList faults_;
};

}  // namespace isobar::sim

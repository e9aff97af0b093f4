#pragma once

#include "core/text/document.hpp"
#include "core/units.hpp"
#include "sim/scan/prescan.hpp"
#include "sim/scan/simgrid_units.hpp"

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

/// The value of an attribute; "" without it.
std::string attribute(const pugi::xml_node& node, const char* name);
bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words);

/// Reads attributes of the elements of one platform file and collects the file's faults. In place of a faulty value it
/// returns one that causes no further faults.
class ElementReader {
 public:
  /// `text` is the UTF-8 text that the elements were parsed from.
  ElementReader(const std::string& text, const std::string& name);

  const std::string& file() const { return name_; }
  /// The line of a byte of the text, from 1. O(log(lines)).
  int line_at(std::ptrdiff_t offset) const;
  int line_of(const pugi::xml_node& node) const;

  FaultList& faults() { return faults_; }
  /// Adds a fault that names the element and its id.
  void add_fault(const pugi::xml_node& node, const std::string& what);
  /// Whether the element has all attributes that SimGrid requires. Adds a fault for each missing one.
  bool has_all(const pugi::xml_node& node, std::initializer_list<const char*> names);

  BytesPerSecond bandwidth(const pugi::xml_node& node, const char* name);
  /// Reads `text`, a part of the attribute.
  BytesPerSecond bandwidth(const pugi::xml_node& node, const char* name, const std::string& text);
  Seconds latency(const pugi::xml_node& node, const char* name);
  /// The link that two attributes of an element define; nothing where they are missing or 0. Without `latency_name`
  /// its latency is 0.
  std::optional<PlatformScan::Link> made_link(const pugi::xml_node& node, const char* bandwidth_name,
                                              const char* latency_name = nullptr);

  /// Index of the power state that a host starts in, one of `states`.
  std::size_t power_state(const pugi::xml_node& node, std::size_t states);
  /// The speeds of an element by power state, at least one. The first must be more than 0.
  std::vector<FlopsPerSecond> speeds(const pugi::xml_node& node);
  /// The speeds of a host. Any may be 0: some hosts compute nothing, and one that boots has no speed.
  std::vector<FlopsPerSecond> host_speeds(const pugi::xml_node& node);
  void check_cores(const pugi::xml_node& node);
  void check_coordinates(const pugi::xml_node& node);

 private:
  enum class Least { Zero, MoreThanZero };
  std::vector<FlopsPerSecond> read_speeds(const pugi::xml_node& node, Least least_of_first);
  double quantity(const pugi::xml_node& node, const char* name, const std::string& text, const SimGridUnits& units,
                  Least least, double fallback);

  std::string name_;
  std::vector<std::size_t> newlines_;
  FaultList faults_;
};

}  // namespace isobar::sim

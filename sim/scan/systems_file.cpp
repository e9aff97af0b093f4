#include "sim/scan/systems_file.hpp"

#include "core/text/document.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace isobar::sim {

namespace {

/// Reads the keys of one system.
class SystemReader {
 public:
  SystemReader(const DocumentNode& node, const std::string& system, FaultList& faults)
      : keys_(node, system + ".", faults)
  {
  }

  MeasuredSystem read()
  {
    MeasuredSystem system;
    system.update_speed = quantity("update_speed", speed_from_text, "FLOP/s");
    system.busy_update_speed = quantity("busy_update_speed", speed_from_text, "FLOP/s");
    system.copy_bandwidth = quantity("copy_bandwidth", bandwidth_from_text, "B/s");
    system.backward_delay = quantity("backward_delay", seconds_from_text).value_or(Seconds(0));
    system.workspace = keys_.optional_bytes("workspace").value_or(Bytes(0));
    system.reserved_fraction = fraction("reserved_fraction");
    system.host_fraction = fraction("host_fraction");
    keys_.refuse_unknown();
    return system;
  }

 private:
  /// With a `least_unit`, the value must be at least 1 of it.
  template <typename Quantity>
  std::optional<Quantity> quantity(const std::string& key, Quantity (*from_text)(std::string_view),
                                   const char* least_unit = nullptr)
  {
    const auto text = keys_.optional_text(key);
    if (!text) return std::nullopt;
    try {
      const Quantity value = from_text(*text);
      if (least_unit != nullptr && value.value < 1) {
        throw std::invalid_argument(fmt::format("{} is less than 1 {}", in_quotes(*text), least_unit));
      }
      return value;
    } catch (const std::invalid_argument& fault) {
      keys_.add_fault(key, fault.what());
      return std::nullopt;
    }
  }

  /// Memory that is taken, of memory that is counted.
  double fraction(const std::string& key)
  {
    constexpr double largest = 1000;
    const double value = keys_.optional_number(key, 1).value_or(1);
    if (value <= largest) return value;
    keys_.add_fault(key, fmt::format("{:g} is out of range; write a number from 1 to {:g}", value, largest));
    return 1;
  }

  MappingReader keys_;
};

}  // namespace

std::map<std::string, MeasuredSystem> systems_from_yaml(const std::string& text, const std::string& name)
{
  const DocumentNode root = parse_yaml(text, name);
  FaultList faults(name);
  if (root.kind != DocumentNode::Kind::Mapping) {
    faults.add(std::max(root.line, 1), "", "is not a mapping; write names of systems and what was measured of them");
  }
  std::map<std::string, MeasuredSystem> systems;
  for (const auto& [system, node] : root.members) systems[system] = SystemReader(node, system, faults).read();
  faults.throw_if_any();
  return systems;
}

}  // namespace isobar::sim

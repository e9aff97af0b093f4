#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

/// A type of GPU, with the dense peak rates (no sparsity) of its vendor's data sheet.
///
/// Sustained rates are lower and depend on the model. A measured profile of the type takes precedence.
struct DeviceType {
  std::string name;                    ///< such as "V100-SXM2-16GB"
  std::string other_name;              ///< as data sets spell it; empty without one
  FlopsPerSecond float32;              ///< outside tensor cores
  FlopsPerSecond fp16;                 ///< on tensor cores if the type has them, accumulating in float32
  std::optional<FlopsPerSecond> bf16;  ///< on tensor cores; absent for types without it
  Bytes memory;                     ///< the sheet's GB as powers of 1000, which leaves a margin for driver and context
  BytesPerSecond inside_bandwidth;  ///< to the other devices of its node, per direction: NVLink if it has it, else PCIe
  std::string source;               ///< title and date of the data sheet
};

/// All types that generators and importers know, oldest first.
const std::vector<DeviceType>& device_types();
/// The type of a name that `device_groups_from_text` accepts. @throws std::logic_error for any other.
const DeviceType& device_type(std::string_view name);
/// Refuses a name that no type has. @throws std::invalid_argument that suggests similar types, or lists all types.
void require_device_type(const std::string& name);

/// A number of devices of one type. Without a type, speed and memory come from the generator's options.
struct DeviceGroup {
  std::size_t count = 1;
  std::string type;
};

/// Reads groups such as "8xA100-SXM4-40GB+8xT4", or a bare count such as "1024" for devices without a type.
/// @throws std::invalid_argument with a message that names no place; the caller adds it.
std::vector<DeviceGroup> device_groups_from_text(std::string_view text);
/// Writes the groups as `device_groups_from_text` reads them.
std::string text_of(const std::vector<DeviceGroup>& groups);

/// A number of nodes with equal devices.
struct NodeGroup {
  std::size_t count = 1;
  DeviceGroup devices;  ///< of each node

  std::size_t device_count() const { return count * devices.count; }
};

/// Reads groups such as "4*8xA100-SXM4-40GB+8xT4": 4 nodes of 8 devices and one of 8.
/// @throws std::invalid_argument with a message that names no place; the caller adds it.
std::vector<NodeGroup> node_groups_from_text(std::string_view text);
/// Writes the groups as `node_groups_from_text` reads them.
std::string text_of(const std::vector<NodeGroup>& groups);

}  // namespace isobar::sim

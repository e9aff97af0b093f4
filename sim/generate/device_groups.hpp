#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

/// Refuses a name that no type of device has. @throws std::invalid_argument that suggests types of the same model, or
/// lists all types, and says how to describe a device of another type.
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

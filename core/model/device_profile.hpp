#pragma once

#include "core/model/dtype.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// What one layer took on a device, for one micro-batch: medians of repetitions.
struct LayerProfile {
  std::string name;
  Seconds forward;
  Seconds backward;
  Seconds update;
  double spread_fraction = 0;  ///< (upper quartile − lower quartile) / median of forward and backward together
  Bytes activations;           ///< kept from forward until backward
  std::optional<Bytes> peak;   ///< held at once while it trained alone, with its parameters and all
};

/// A workload's layers measured on one device.
struct DeviceProfile {
  std::string device;    ///< its type, as in Device::type
  FlopsPerSecond speed;  ///< work of all layers / time of all layers, forward and backward
  Bytes memory;          ///< that the device has
  DType dtype = DType::Float32;
  std::uint64_t micro_batch = 1;
  std::uint64_t sequence = 1;
  /// Of copies between a GPU and pinned memory of its host; a CPU has none.
  std::optional<BytesPerSecond> host_to_device;
  std::optional<BytesPerSecond> device_to_host;
  std::vector<LayerProfile> layers;
};

/// profile.json, schema isobar-profile/1 (docs/formats.md).
std::string profile_to_json(const DeviceProfile& profile);
/// @throws InputError naming file, line and key of every fault.
DeviceProfile profile_from_json(const std::string& text, const std::string& name);
DeviceProfile read_profile(const std::filesystem::path& file);

/// Gives the workload's layers the work that their measured times mean at the profile's speed. So a layer takes what
/// was measured on a device of that speed, and on another one that time × the profile's speed / the device's.
/// @throws InputError, naming `file`, when the profile is of other layers, another dtype or another micro-batch.
void apply_profile(const DeviceProfile& profile, const std::string& file, Workload& workload);

}  // namespace isobar

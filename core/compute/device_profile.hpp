#pragma once

#include "core/model/dtype.hpp"
#include "core/model/workload.hpp"
#include "core/spmd/device_rates.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// Measured times of one layer on a device for one micro-batch: medians of repetitions.
struct LayerProfile {
  std::string name;
  Seconds forward;
  Seconds backward;
  Seconds update;
  double spread_fraction = 0;      ///< (upper quartile − lower quartile) / median of forward and backward together
  Bytes activations;               ///< kept from forward until backward, its inputs among them
  std::optional<Bytes> workspace;  ///< as in Layer
  std::optional<Bytes> peak;       ///< peak memory of training only this layer, parameters and all included
};

/// Measured copies in one direction between a device and its machine's memory: each takes latency + size / bandwidth.
struct CopyProfile {
  Seconds latency;
  BytesPerSecond bandwidth;
};

/// What was measured of a disk.
struct DiskProfile {
  Bytes capacity;  ///< free space
  BytesPerSecond read;
  BytesPerSecond write;
  bool is_direct = false;  ///< without the system's cache of files
};

/// What was measured of the machine that a device is in.
struct MachineProfile {
  std::string processor;  ///< its name and the number of threads that update
  Bytes memory;
  /// Work of updates by the workload's optimizer, as update_flops_per_parameter counts it, over their time.
  FlopsPerSecond update_speed;
  FlopsPerSecond busy_update_speed;  ///< while the device computes
  CopyProfile in;                    ///< from the machine to the device
  CopyProfile out;                   ///< back
  std::optional<DiskProfile> disk;   ///< none: not measured
};

/// A workload's layers measured on one device, or the rates at which devices compute operators, or both.
struct DeviceProfile {
  std::string device;    ///< the device's type, as in Device::type
  FlopsPerSecond speed;  ///< work of all layers / time of all layers, forward and backward
  Bytes memory;          ///< of the device
  DType dtype = DType::Float32;
  std::uint64_t micro_batch = 1;
  std::uint64_t sequence = 1;
  std::vector<LayerProfile> layers;                              ///< none in a file of rates alone, as all of the above
  std::optional<MachineProfile> machine;                         ///< none: not measured
  std::map<std::string, spmd::DeviceRates> operator_rates = {};  ///< by Device::type

  bool has_layers() const { return !layers.empty() || operator_rates.empty(); }
};

/// The text of a profile.json, schema isobar-profile/1 (docs/formats/profile.md).
std::string profile_to_json(const DeviceProfile& profile);
/// Parses a profile; `name` stands for the file in messages.
/// @throws InputError naming file, line and key of every fault.
DeviceProfile profile_from_json(const std::string& text, const std::string& name);
DeviceProfile read_profile(const std::filesystem::path& file);

/// Sets the work of the workload's layers from their measured times, at the profile's speed. A layer then takes the
/// measured time on a device of that speed, and that time × the profile's speed / the device's speed on another.
/// `backward_weight` stays the same fraction of `backward`. Sets activations and workspace, if both were measured.
/// Gives a workload whose layers are operators the rates of devices, too.
/// @throws InputError, naming `file`, when the profile has other layers, another dtype or another micro-batch, and when
/// it has rates alone and the workload no operators.
void apply_profile(const DeviceProfile& profile, const std::string& file, Workload& workload);

/// Gives devices of one more type times of their own (Workload::times). Call it after apply_profile, with the profile
/// of another type.
/// @throws InputError as apply_profile does, and for a profile of rates alone.
void add_profile(const DeviceProfile& profile, const std::string& file, const std::string& type, Workload& workload);

}  // namespace isobar

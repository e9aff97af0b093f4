#pragma once

#include "core/cluster/cluster.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::sim {

class Routes;
class SimGridNetwork;

/// What a study may change about a platform.
enum class Property : std::uint8_t { Speed, Memory, Bandwidth, Latency };

/// A SimGrid platform file loaded into this process's one engine, and the cluster that it describes.
///
/// Loading scans the XML for faults first (prescan.hpp), then loads it in a child process, where SimGrid may abort on
/// what remains, and only then in this process. Every network factor is set by us (network_settings).
/// Cluster's paths are looked up when they are asked for and kept; they live as long as the process.
class Platform {
 public:
  /// Devices: hosts with a `memory` prop, or named by the patterns of `devices_file` (default: NAME.devices.yaml beside
  /// NAME.xml where that exists). Order: that of the file. Routes of the devices in `left_out` are not checked: the
  /// caller takes them away by `leave_out`, which refuses names that no device has.
  /// @throws InputError "file:line: …" for every fault; at most one Platform per process (std::logic_error).
  static Platform load(const std::filesystem::path& file, const std::optional<std::filesystem::path>& devices_file = {},
                       const std::vector<std::string>& left_out = {});

  /// A platform that lies in no file, such as one that a generator has just made.
  static Platform from_text(const std::string& xml, const std::string& name);

  const Cluster& cluster() const { return cluster_; }
  /// What was measured on a machine goes before what the file says of devices of its type, in all dtypes; it is what
  /// slowdowns count from.
  void set_measured_speed(const std::string& device_type, FlopsPerSecond speed);
  /// Multiplies what the file says, until the process ends: of one device (Speed, Memory; speeds in all dtypes) or one
  /// link (Bandwidth, Latency), or of all of them. Plans and simulations from now on see it; `hash` does not. What a
  /// Vivaldi zone makes of coordinates stays. O(devices) or O(links).
  /// @throws InputError for a factor that is not positive or leads out of what `load` takes, a name that is not there,
  /// a link that a profile sets.
  void scale(Property property, double factor, const std::optional<std::string>& name = {});
  /// The cluster is from now on as if these devices were not there; transfers between others pass through them as
  /// before. `hash` stays. @throws InputError as without_devices does.
  void leave_out(const std::vector<std::string>& devices, const std::string& where);
  /// What the simulator needs of the way between two hosts (sim/platform/routes.hpp).
  const Routes& routes() const { return *routes_; }
  /// Fingerprint of the platform file, its devices file and its profile files.
  const std::string& hash() const { return hash_; }
  /// Those files, as they are found from the working folder.
  const std::vector<std::string>& files() const { return files_; }
  /// What of the platform file is not taken, in a line each, "file:line: …": `<config>`, since settings of SimGrid are
  /// ours (network_settings) and a platform file causes nothing to be written; hosts with memory and a speed of 0.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Platform() = default;
  static Platform load_text(const std::string& xml, const std::filesystem::path& file,
                            const std::optional<std::filesystem::path>& devices_file,
                            const std::vector<std::string>& left_out);

  Cluster cluster_;
  std::shared_ptr<const Routes> routes_;
  std::shared_ptr<const SimGridNetwork> network_;
  std::string hash_;
  std::vector<std::string> files_;
  std::vector<std::string> notes_;
};

/// SimGrid's version, such as "3.32".
std::string simgrid_version();

/// Every option that decides simulated times, name and value, as set before a platform is loaded.
const std::vector<std::pair<std::string, std::string>>& network_settings();

}  // namespace isobar::sim

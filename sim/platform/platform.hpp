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

/// What a study may scale: properties of devices, of machines, then of links.
enum class Property : std::uint8_t { Speed, Memory, UpdateSpeed, Bandwidth, Latency };

/// A SimGrid platform file, loaded into this process's only SimGrid engine, and the cluster that it describes.
///
/// Loading first scans the XML for faults (sim/scan/prescan.hpp). It then loads the file in a child process, where
/// SimGrid may abort on what remains, and only then in this process. Isobar sets every network factor itself
/// (network_settings). The cluster's paths are looked up on demand and cached; they live as long as the process.
class Platform {
 public:
  /// Loads a platform file. Devices are the hosts with a `memory` prop, in the order of the file; `devices_file` adds
  /// props by patterns of names (default: NAME.devices.yaml next to NAME.xml, if it exists). What was measured of
  /// systems comes from NAME.systems.yaml, if it exists. Routes of the devices that `left_out` names, by their names or
  /// their sites', are not checked: the caller removes these devices with `leave_out`. Unknown names are ignored.
  /// @throws InputError "file:line: …" for every fault; std::logic_error for a second Platform in this process.
  static Platform load(const std::filesystem::path& file, const std::optional<std::filesystem::path>& devices_file = {},
                       const std::vector<std::string>& left_out = {});

  /// Loads a platform from its XML text, such as one that was just generated. It has no files.
  static Platform from_text(const std::string& xml, const std::string& name);

  const Cluster& cluster() const { return cluster_; }
  /// Sets the speed, in all dtypes, of the devices of one type to a measured one. Slowdowns count from it.
  void set_measured_speed(const std::string& device_type, FlopsPerSecond speed);
  /// Gives devices of a type a speed in every dtype, instead of those of the platform file.
  void set_speed(const std::string& device_type, FlopsPerSecond speed);
  /// Multiplies a property by `factor` until the process ends: of one device (Speed, in all dtypes, or Memory), of one
  /// machine (UpdateSpeed), of one link (Bandwidth or Latency), or of all of them without a `name`, also of what was
  /// measured of systems in machines. Later plans and simulations see it; `hash` and
  /// the latencies that a Vivaldi zone computes from coordinates do not change. O(devices) or O(links).
  /// @throws InputError for a factor that is not positive or leaves the range that `load` accepts, for an unknown name,
  /// and for a link with a profile.
  void scale(Property property, double factor, const std::optional<std::string>& name = {});
  /// Removes devices from the cluster. Transfers between others still pass through their hosts; `hash` does not change.
  /// @throws InputError as without_devices does.
  void leave_out(const std::vector<std::string>& devices, const std::string& where);
  /// Routes between hosts, as the simulator needs them (sim/platform/routes.hpp).
  const Routes& routes() const { return *routes_; }
  /// Fingerprint of the platform file, its devices file, its systems file and its profile files.
  const std::string& hash() const { return hash_; }
  /// Paths of these files, as found from the working folder.
  const std::vector<std::string>& files() const { return files_; }
  /// Notes on the platform file, one line each, "file:line: …". They list its ignored parts: `<config>`, because Isobar
  /// sets SimGrid's options and lets no platform file write anything, backbones of topologies, hosts with memory and a
  /// speed of 0, and disks of machines without a capacity. They also name the machines of devices that name none.
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

/// Names and values of every SimGrid option that affects simulated times, as set before a platform is loaded.
const std::vector<std::pair<std::string, std::string>>& network_settings();

}  // namespace isobar::sim

#pragma once

#include "core/model/dtype.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// One processor that can hold layers: one GPU, or one CPU socket.
struct Device {
  std::string name;
  std::string type;  ///< such as "V100-SXM2-16GB"; empty when the platform does not say
  std::string site;  ///< devices of one site are near; empty when the platform does not say
  FlopsPerSecond speed;
  std::map<DType, FlopsPerSecond> speed_in;  ///< rates in dtypes other than float32, where the platform gives them
  Bytes memory;
  std::optional<double> price_usd_per_hour;

  /// The sustained rate in `dtype`: the platform's rate for it, else `speed`.
  FlopsPerSecond speed_at(DType dtype) const;
};

/// What one transfer meets between two devices when nothing else is on the way.
struct Path {
  Seconds latency;
  BytesPerSecond bandwidth;  ///< of the narrowest link, or flows x window / round-trip time where that is less

  /// Until the last byte has arrived.
  Seconds transfer_time(Bytes size) const { return latency + data_time(size); }
  /// How long the bytes take to leave, and to arrive: the time that a transfer occupies its lane.
  Seconds data_time(Bytes size) const { return size / bandwidth; }
};

/// The network between the endpoints of a cluster: its devices 0..n-1, then its data server n if it has one.
class Network {
 public:
  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  virtual ~Network() = default;

  /// @throws InputError when the platform has no route between the two.
  virtual Path path(std::size_t from, std::size_t to) const = 0;
  /// Names of the links that a transfer passes, in order; transfers that share one share its bandwidth.
  virtual std::vector<std::string> links(std::size_t from, std::size_t to) const = 0;
  /// The path if one link had `factor` times its bandwidth; latencies and windows stay. A network that knows no single
  /// links answers the path as it is.
  virtual Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const;
};

/// Every path written down; for clusters made in code, and for tests. Links are private to their pair.
class MatrixNetwork : public Network {
 public:
  /// `paths[from * endpoints + to]`; the diagonal is not used.
  MatrixNetwork(std::size_t endpoints, std::vector<Path> paths);
  /// The same path between every two endpoints.
  static std::shared_ptr<const MatrixNetwork> uniform(std::size_t endpoints, Path path);

  Path path(std::size_t from, std::size_t to) const override { return paths_[from * endpoints_ + to]; }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override;
  Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const override;

 private:
  std::size_t endpoints_;
  std::vector<Path> paths_;
};

/// Devices in the order of the platform file, and what lies between each two.
struct Cluster {
  std::string name;
  std::vector<Device> devices;
  std::optional<std::string> data_server;  ///< where the input of each micro-batch comes from; absent: input is local
  std::shared_ptr<const Network> network;
  /// No profile of the platform makes anything more than this many times faster than its nominal value, infinity where
  /// nothing is known; lower bounds on simulated time are divided by it.
  double profile_speedup = 1;
  /// Of the machine that layers were measured on, where they were: what emulation slows down.
  std::optional<FlopsPerSecond> measured_speed;

  std::size_t data_server_index() const { return devices.size(); }
  /// From one endpoint to another (see Network).
  Path path(std::size_t from, std::size_t to) const { return network->path(from, to); }
  /// The index of a device by its name. O(devices).
  std::optional<std::size_t> device_index(const std::string& device_name) const;
};

/// The cluster as if the named devices were not there. O(devices · names).
/// @throws InputError, naming `where` asks for it, for a name that no device has, and when none would be left.
Cluster without_devices(const Cluster& cluster, const std::vector<std::string>& names, const std::string& where);

/// The rate that a device's slowdown counts from: of the machine that was measured, else of the fastest device.
/// O(devices).
FlopsPerSecond reference_speed(const Cluster& cluster, DType dtype);

/// The cluster as JSON (schema isobar-cluster/1, docs/formats.md): what an external allocator reads. O(devices²).
std::string cluster_to_json(const Cluster& cluster);

}  // namespace isobar

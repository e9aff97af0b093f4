#pragma once

#include "core/model/dtype.hpp"
#include "core/shared_link.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// The path of a transfer between two endpoints, without contention.
struct Path {
  Seconds latency;
  BytesPerSecond bandwidth;  ///< of the narrowest link, or flows x window / round-trip time if that is less

  /// The time until the last byte has arrived.
  Seconds transfer_time(Bytes size) const { return latency + data_time(size); }
  /// The time that the bytes take to leave, and to arrive: how long a transfer occupies its lane.
  Seconds data_time(Bytes size) const { return size / bandwidth; }
};

/// A disk of a machine. Reads and writes at the same time share the larger of the two rates.
struct Disk {
  std::string name;
  Bytes capacity;
  BytesPerSecond read;
  BytesPerSecond write;
};

/// What devices are in: its memory, processor and disk hold and update what they do not.
struct Machine {
  std::string name;
  Bytes memory;
  FlopsPerSecond update_speed;       ///< of updates while none of its devices computes
  FlopsPerSecond busy_update_speed;  ///< while one of them does
  std::optional<Disk> disk;          ///< none: the platform gives it none with a capacity
  std::size_t cores = 1;             ///< updates at a time that run at the full rate
};

/// The machine that a device is in, and the copies between them.
struct MachineLink {
  std::size_t machine = 0;  ///< index in Cluster::machines
  Path in;                  ///< from the machine's memory to the device
  Path out;                 ///< back
  /// The links of these, each once, at which copies meet others. Their names live as long as the platform's network.
  std::vector<SharedLink> in_links = {};
  std::vector<SharedLink> out_links = {};
};

/// What was measured of a training system on the machines of a platform, in place of what the platform says. A plan
/// names the system (Plan::system).
struct MeasuredSystem {
  std::optional<FlopsPerSecond> update_speed = {};
  std::optional<FlopsPerSecond> busy_update_speed = {};
  std::optional<BytesPerSecond> copy_bandwidth = {};  ///< in each direction
  Seconds backward_delay = {};                        ///< added to each load of parameters for a backward pass
  Bytes workspace = {};                               ///< that a device needs besides what a plan counts
  double reserved_fraction = 1;  ///< memory that the allocator of the device reserves / memory in use; 1 or more
  double host_fraction = 1;      ///< memory of the machine that is taken / what a plan counts there; 1 or more
};

/// One processor that can hold layers: one GPU, or one CPU socket.
struct Device {
  std::string name;
  std::string type;      ///< such as "V100-SXM2-16GB"; empty if the platform does not give it
  std::string site;      ///< devices of one site are close to each other; empty if the platform does not give it
  FlopsPerSecond speed;  ///< sustained rate in float32
  std::map<DType, FlopsPerSecond> speed_in;  ///< rates in other dtypes, if the platform gives them
  Bytes memory;
  std::optional<double> price_usd_per_hour;
  std::optional<MachineLink> machine = {};  ///< none: it can use its own memory alone
  double interference = 1;  ///< how many times longer it computes while it takes part in a collective; 1 or more
  /// How many times as fast as its type computes what times by type say (Workload::times): 1, unless it is scaled.
  double pace = 1;
  Seconds collective_start = {};  ///< that passes before the first message of a collective in which it takes part

  /// The sustained rate in `dtype`: the platform's rate for it, else `speed`.
  FlopsPerSecond speed_at(DType dtype) const;
};

/// The network between the endpoints of a cluster: devices 0..n-1 and, if there is one, data server n.
class Network {
 public:
  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  virtual ~Network() = default;

  /// The path between two endpoints. @throws InputError when the platform has no route between them.
  virtual Path path(std::size_t from, std::size_t to) const = 0;
  /// Names of the links that a transfer passes, in order. Transfers that share a link share its bandwidth.
  virtual std::vector<std::string> links(std::size_t from, std::size_t to) const = 0;
  /// The path if `link` had `factor` times its bandwidth, with the same latencies and windows. The default
  /// implementation, for networks without known links, returns the unchanged path.
  virtual Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const;
  /// The links of a transfer, each once. The names live as long as the network. The default implementation, for
  /// networks in which no two transfers share a link, returns none.
  virtual std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const;
};

/// A network given by a table of paths, for clusters built in code and for tests. No two pairs share a link.
class MatrixNetwork : public Network {
 public:
  /// The path from `from` to `to` is `paths[from * endpoints + to]`; the diagonal is not used.
  MatrixNetwork(std::size_t endpoints, std::vector<Path> paths);
  /// A network with the same path between any two endpoints.
  static std::shared_ptr<const MatrixNetwork> uniform(std::size_t endpoints, Path path);

  Path path(std::size_t from, std::size_t to) const override { return paths_[from * endpoints_ + to]; }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override;
  Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const override;

 private:
  std::size_t endpoints_;
  std::vector<Path> paths_;
};

/// The devices, in the order of the platform file, and the network between them.
struct Cluster {
  std::string name;
  std::vector<Device> devices;
  std::vector<Machine> machines = {};
  std::map<std::string, MeasuredSystem> systems = {};  ///< by name
  std::optional<std::string> data_server;              ///< sends the input of each micro-batch; none: input is local
  std::shared_ptr<const Network> network;
  /// The largest factor by which a profile of the platform speeds anything up over its nominal value; infinity if
  /// unknown. Lower bounds on simulated time are divided by it.
  double profile_speedup = 1;
  /// Speed of the machine that the layers were measured on, if they were measured: what emulation slows down.
  std::optional<FlopsPerSecond> measured_speed;

  std::size_t data_server_index() const { return devices.size(); }
  /// The path between two endpoints (see Network).
  Path path(std::size_t from, std::size_t to) const { return network->path(from, to); }
  /// The index of a device by its name. O(devices).
  std::optional<std::size_t> device_index(const std::string& device_name) const;
};

/// The devices that names of devices and of sites stand for, each once, in the order of the names: a site's name for
/// all devices of the site, a name of both for the device. O(devices · names).
/// @throws InputError, with the place `where`, for a name of neither.
std::vector<std::string> devices_named(const Cluster& cluster, const std::vector<std::string>& names,
                                       const std::string& where);

/// The cluster without the named devices. O(devices · names).
/// @throws InputError, with the place `where`, for a name that no device has, and when no device would be left.
Cluster without_devices(const Cluster& cluster, const std::vector<std::string>& names, const std::string& where);

/// Gives the devices of a type (is_same_device_type) this speed for every dtype. O(devices).
void set_speed(Cluster& cluster, const std::string& device_type, FlopsPerSecond speed);

/// The speed relative to which a device's slowdown is given: that of the measured machine, else of the fastest device.
/// O(devices).
FlopsPerSecond reference_speed(const Cluster& cluster, DType dtype);

/// The cluster as JSON (schema isobar-cluster/1, docs/formats/external.md): what an external allocator reads.
/// O(devices²).
std::string cluster_to_json(const Cluster& cluster);

}  // namespace isobar

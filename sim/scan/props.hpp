#pragma once

#include "core/model/dtype.hpp"
#include "core/units.hpp"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

/// What a host is besides a device.
enum class Role { DataServer, Machine };

/// Isobar's `<prop>`s of one element of a platform file, or of one entry of a devices file (docs/formats/platform.md).
struct Props {
  std::optional<Bytes> memory;
  std::optional<std::string> device;
  std::optional<std::string> site;
  std::map<DType, FlopsPerSecond> speed_in;
  std::optional<double> price_usd_per_hour;
  std::optional<Role> role;
  std::optional<std::string> host;          ///< name of the machine that a device is in
  std::optional<double> interference;       ///< Device::interference
  std::optional<Seconds> collective_start;  ///< Device::collective_start
  std::optional<double> flows;
  std::optional<Bytes> window;
  std::optional<Bytes> capacity;  ///< of a disk
};

/// Kinds of elements that may have props of Isobar.
enum class PropHolder { Host, Link, Zone, Cluster, Disk };

/// Reads a prop into `props`. Returns whether it is one of Isobar's; props of other programs are ignored.
/// @throws std::invalid_argument for a value that cannot be read, a prop on an element where it has no effect, and a
/// likely misspelling of one of Isobar's props. The message names no place.
bool read_prop(Props& props, PropHolder holder, const std::string& id, const std::string& value);

/// Whether a prop belongs to another program although its name is one of Isobar's. That is a role that is not similar
/// to one of Isobar's, such as Batsim's `master`. On an element where the prop has no effect, it is also a value that
/// Isobar cannot read, such as memory="128".
bool is_foreign_prop(PropHolder holder, const std::string& id, const std::string& value);

/// Whether other programs give this prop to hosts for what Isobar calls memory, such as "ram".
bool is_foreign_memory(std::string_view id);
/// Whether ElastiSim reads this prop for the GPUs of a host. Isobar's devices are hosts.
bool is_foreign_gpu(std::string_view id);

/// Names of the props that an element may have.
std::vector<std::string> prop_names(PropHolder holder);

/// Overwrites `below` with the props that `above` has.
void overlay(Props& below, const Props& above);

}  // namespace isobar::sim

#pragma once

#include "sim/scan/prescan.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

/// The hosts of a platform file that become endpoints of the cluster, and the machines of its devices. They belong to
/// the scan, which must outlive this.
struct Endpoints {
  std::vector<const ScannedHost*> devices;   ///< in the order of the file
  const ScannedHost* data_server = nullptr;  ///< null without one
  std::vector<const ScannedHost*> machines;  ///< in the order of the file

  /// Devices, then the data server if there is one, as Network numbers them.
  std::vector<const ScannedHost*> all() const;
};

/// Chooses the endpoints. Machines are the hosts that have that role and those that a prop `host` names; hosts with
/// memory that compute and are no machines are devices; one host may have the role of data server.
/// @throws InputError "file:line: …" when a host is two of these, when there is a second data server, without a device,
/// for a machine without memory or with speeds that are not those of updates, and for a prop `host` that names none.
Endpoints endpoints_of(const std::vector<ScannedHost>& hosts, const std::string& file);

/// Removes devices by their names or those of their sites, as devices_named reads them; other names are ignored.
Endpoints endpoints_without(Endpoints endpoints, const std::vector<std::string>& left_out);

/// About hosts with `has_foreign_gpus`.
inline constexpr std::string_view foreign_gpus_text =
    "ElastiSim's props num_gpus and flops_per_gpu are not read; write a host for each GPU, with its speed and the prop "
    "memory";

/// "file:line: host NAME", the place of a fault.
std::string place_of_host(const std::string& file, const ScannedHost& host);

}  // namespace isobar::sim

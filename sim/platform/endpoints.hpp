#pragma once

#include "sim/scan/prescan.hpp"

#include <string>
#include <vector>

namespace isobar::sim {

/// The hosts of a platform file that become endpoints of the cluster. They belong to the scan, which must outlive this.
struct Endpoints {
  std::vector<const ScannedHost*> devices;   ///< in the order of the file
  const ScannedHost* data_server = nullptr;  ///< null without one

  /// Devices, then the data server if there is one, as Network numbers them.
  std::vector<const ScannedHost*> all() const;
};

/// Chooses the endpoints: hosts with memory that compute are devices; one host may have the role of data server.
/// @throws InputError "file:line: …" when a host is both, when there is a second data server, and without a device.
Endpoints endpoints_of(const std::vector<ScannedHost>& hosts, const std::string& file);

/// Removes devices by name; names that no device has are ignored.
Endpoints endpoints_without(Endpoints endpoints, const std::vector<std::string>& left_out);

/// "file:line: host NAME", the place of a fault.
std::string place_of_host(const std::string& file, const ScannedHost& host);

}  // namespace isobar::sim

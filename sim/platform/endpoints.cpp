#include "sim/platform/endpoints.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::sim {

std::vector<const ScannedHost*> Endpoints::all() const
{
  auto hosts = devices;
  if (data_server != nullptr) hosts.push_back(data_server);
  return hosts;
}

std::string place_of_host(const std::string& file, const ScannedHost& host)
{
  return fmt::format("{}:{}: host {}", file, host.line, host.name);
}

Endpoints endpoints_of(const std::vector<ScannedHost>& hosts, const std::string& file)
{
  Endpoints endpoints;
  std::vector<std::string> faults;
  for (const auto& host : hosts) {
    if (host.props.memory && host.computes) endpoints.devices.push_back(&host);
    if (!host.props.data_server) continue;
    if (host.props.memory) {
      faults.push_back(place_of_host(file, host) +
                       ": is a device (it has memory) and the data server; remove the prop memory or the role");
    } else if (endpoints.data_server != nullptr) {
      faults.push_back(fmt::format("{}: is a second data server; {} in line {} is the first", place_of_host(file, host),
                                   endpoints.data_server->name, endpoints.data_server->line));
    } else {
      endpoints.data_server = &host;
    }
  }
  if (!faults.empty()) throw InputError(faults);
  if (endpoints.devices.empty()) {
    throw InputError(fmt::format("{}:1", file),
                     "no host is a device; give hosts the prop memory, here or in a devices file");
  }
  return endpoints;
}

Endpoints endpoints_without(Endpoints endpoints, const std::vector<std::string>& left_out)
{
  std::erase_if(endpoints.devices, [&left_out](const ScannedHost* device) {
    return std::find(left_out.begin(), left_out.end(), device->name) != left_out.end();
  });
  return endpoints;
}

}  // namespace isobar::sim

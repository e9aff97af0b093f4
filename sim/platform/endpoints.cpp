#include "sim/platform/endpoints.hpp"

#include "core/errors.hpp"
#include "sim/platform/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>

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

namespace {

/// Chooses the endpoints of one platform file and collects its faults.
class Choice {
 public:
  Choice(const std::vector<ScannedHost>& hosts, const std::string& file) : hosts_(hosts), file_(file)
  {
    for (const auto& host : hosts) names_.insert(host.name);
  }

  Endpoints choose()
  {
    for (const auto& host : hosts_) {
      if (host.props.host) add_named_machine(host, *host.props.host);
    }
    for (const auto& host : hosts_) {
      if (host.props.role == Role::Machine || named_.contains(host.name)) {
        add_machine(host);
      } else if (host.props.memory && host.computes) {
        endpoints_.devices.push_back(&host);
      }
      if (host.props.role == Role::DataServer) add_data_server(host);
    }
    if (!faults_.empty()) throw InputError(faults_);
    if (endpoints_.devices.empty()) {
      throw InputError(fmt::format("{}:1", file_),
                       "no host is a device; give hosts the prop memory, here or in a devices file" + near_misses());
    }
    return std::move(endpoints_);
  }

 private:
  void refuse(const ScannedHost& host, const std::string& what)
  {
    faults_.push_back(place_of_host(file_, host) + ": " + what);
  }

  /// What hosts have in place of memory.
  std::string near_misses() const
  {
    std::string text;
    const auto with_memory = std::ranges::find_if(hosts_, [](const auto& host) { return !host.memory_prop.empty(); });
    if (with_memory != hosts_.end()) {
      text += fmt::format("; host {} in line {} has a prop {}: did you mean memory?", shown(with_memory->name),
                          with_memory->line, with_memory->memory_prop);
    }
    const auto with_gpus = std::ranges::find_if(hosts_, &ScannedHost::has_foreign_gpus);
    if (with_gpus != hosts_.end()) {
      text += fmt::format("; host {} in line {}: {}", shown(with_gpus->name), with_gpus->line, foreign_gpus_text);
    }
    return text;
  }

  void add_named_machine(const ScannedHost& device, const std::string& name)
  {
    if (!names_.contains(name)) {
      refuse(device, fmt::format("prop host: there is no host {}; name the one that the device is in", shown(name)));
    } else if (name == device.name) {
      refuse(device, "prop host: names the device itself; name the host whose memory it can use");
    } else if (!device.props.memory) {
      refuse(device, "prop host has no effect without the prop memory: only a device is in a machine");
    } else {
      named_.insert(name);
    }
  }

  void add_machine(const ScannedHost& host)
  {
    endpoints_.machines.push_back(&host);
    if (!host.props.memory) {
      refuse(host, "is a machine without memory; give it the prop memory, the size of its RAM");
    }
    if (host.props.host) refuse(host, "is a machine, which cannot be in another; remove its prop host");
    if (host.speeds.size() > 2) {
      refuse(host, fmt::format("is a machine with {} speeds; it has one rate of updates, or two: while one of its "
                               "devices computes, and while none does",
                               host.speeds.size()));
    }
    if (!std::ranges::all_of(host.speeds, [](FlopsPerSecond speed) { return is_rate(speed.value); })) {
      refuse(host, "is a machine whose rate of updates is not 1 to 1e30 FLOP/s; its speed is that rate");
    }
  }

  void add_data_server(const ScannedHost& host)
  {
    if (named_.contains(host.name)) {
      refuse(host, "is a machine (a prop host names it) and the data server; remove the prop host or the role");
    } else if (host.props.memory) {
      refuse(host, "is a device (it has memory) and the data server; remove the prop memory or the role");
    } else if (endpoints_.data_server != nullptr) {
      refuse(host, fmt::format("is a second data server; {} in line {} is the first", endpoints_.data_server->name,
                               endpoints_.data_server->line));
    } else {
      endpoints_.data_server = &host;
    }
  }

  const std::vector<ScannedHost>& hosts_;
  const std::string& file_;
  Endpoints endpoints_;
  std::unordered_set<std::string> names_;  // of all hosts
  std::unordered_set<std::string> named_;  // by a prop `host`
  std::vector<std::string> faults_;
};

}  // namespace

Endpoints endpoints_of(const std::vector<ScannedHost>& hosts, const std::string& file)
{
  return Choice(hosts, file).choose();
}

Endpoints endpoints_without(Endpoints endpoints, const std::vector<std::string>& left_out)
{
  std::unordered_set<std::string> names;
  for (const auto* device : endpoints.devices) names.insert(device->name);
  std::unordered_set<std::string> left_out_sites;
  for (const auto& name : left_out) {
    if (!names.contains(name)) left_out_sites.insert(name);
  }
  std::erase_if(endpoints.devices, [&](const ScannedHost* device) {
    const bool is_named = std::find(left_out.begin(), left_out.end(), device->name) != left_out.end();
    return is_named || (device->props.site && left_out_sites.contains(*device->props.site));
  });
  return endpoints;
}

}  // namespace isobar::sim

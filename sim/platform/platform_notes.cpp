#include "sim/platform/platform_notes.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <map>

namespace isobar::sim {

namespace {

/// Hosts that share a note, which is in the line of the first.
class NotedHosts {
 public:
  void add(const ScannedHost& host)
  {
    if (count_++ == 0) first_ = &host;
  }
  bool empty() const { return count_ == 0; }
  /// "file:line: host NAME and 2 more: what"
  std::string note(const std::string& file, const std::string& what) const
  {
    return fmt::format("{}:{}: host {}{}: {}", on_one_line(file), first_->line, shown(first_->name),
                       count_ == 1 ? "" : fmt::format(" and {} more", count_ - 1), what);
  }

 private:
  const ScannedHost* first_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace

std::vector<std::string> platform_notes(const PlatformScan& scan, const Endpoints& endpoints,
                                        const std::vector<std::optional<MachineLink>>& links, const std::string& file)
{
  std::vector<std::string> notes;
  for (const auto& part : scan.ignored) {
    notes.push_back(fmt::format("{}:{}: {}", on_one_line(file), part.line, part.text));
  }
  NotedHosts idle;
  for (const auto& host : scan.hosts) {
    if (!host.computes && host.props.memory) idle.add(host);
  }
  if (!idle.empty()) notes.push_back(idle.note(file, "a speed of 0, not used as a device"));
  NotedHosts with_gpus;
  for (const auto& host : scan.hosts) {
    if (host.has_foreign_gpus) with_gpus.add(host);
  }
  if (!with_gpus.empty()) notes.push_back(with_gpus.note(file, std::string(foreign_gpus_text)));
  if (endpoints.machines.empty()) return notes;

  NotedHosts without_machine;
  std::map<std::size_t, NotedHosts> in_nearest;  // by machine
  for (std::size_t i = 0; i < links.size(); ++i) {
    const ScannedHost& device = *endpoints.devices[i];
    if (!links[i]) {
      without_machine.add(device);
    } else if (!device.props.host) {
      in_nearest[links[i]->machine].add(device);
    }
  }
  for (const auto& [machine, devices] : in_nearest) {
    notes.push_back(devices.note(file, fmt::format("no prop host, taken to be in the nearest machine, {}",
                                                   shown(endpoints.machines[machine]->name))));
  }
  if (!without_machine.empty()) {
    notes.push_back(without_machine.note(file, "in no machine, because no route leads to one and back"));
  }
  NotedHosts with_unused_disk;
  for (const auto* machine : endpoints.machines) {
    for (const auto& disk : machine->disks) {
      if (!disk.capacity) {
        with_unused_disk.add(*machine);
        break;
      }
    }
  }
  if (!with_unused_disk.empty()) {
    notes.push_back(with_unused_disk.note(file, "a disk without the prop capacity, which is not used"));
  }
  return notes;
}

}  // namespace isobar::sim

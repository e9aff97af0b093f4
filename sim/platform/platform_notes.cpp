#include "sim/platform/platform_notes.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace isobar::sim {

std::vector<std::string> platform_notes(const PlatformScan& scan, const std::string& file)
{
  std::vector<std::string> notes;
  if (scan.config_line) {
    notes.push_back(fmt::format("{}:{}: <config> is ignored; Isobar sets SimGrid's options itself", on_one_line(file),
                                *scan.config_line));
  }
  const ScannedHost* first = nullptr;
  std::size_t idle = 0;
  for (const auto& host : scan.hosts) {
    if (host.computes || !host.props.memory) continue;
    if (idle++ == 0) first = &host;
  }
  if (first != nullptr) {
    notes.push_back(fmt::format("{}:{}: host {}{}: a speed of 0, not used as a device", on_one_line(file), first->line,
                                shown(first->name), idle == 1 ? "" : fmt::format(" and {} more", idle - 1)));
  }
  return notes;
}

}  // namespace isobar::sim

#include "exec/launch/device_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace isobar::exec {

namespace {

/// A line of /proc/meminfo; 0 if there is none.
Bytes of_meminfo(const std::filesystem::path& root, const std::string& line)
{
  std::ifstream file(root / "proc/meminfo");
  std::string key;
  double kibibytes = 0;
  for (std::string unit; file >> key >> kibibytes; std::getline(file, unit)) {
    if (key == line) return Bytes(1024 * kibibytes);
  }
  return Bytes(0);
}

}  // namespace

std::string processor_name(std::size_t threads)
{
  std::ifstream file("/proc/cpuinfo");
  std::string model = "CPU";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto name = line.find_first_not_of(" \t", line.find(':') + 1);
    if (name != std::string::npos) model = line.substr(name);
    break;
  }
  return fmt::format("{}, {} thread{}", model, threads, threads == 1 ? "" : "s");
}

Bytes machine_memory(const std::filesystem::path& root)
{
  Bytes memory = of_meminfo(root, "MemTotal:");
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "4:memory:/PATH" of version 1, "0::/PATH" of version 2. From within a container, PATH may not be there.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const bool is_version_2 = second == first + 1;
    if (!is_version_2 && line.substr(first + 1, second - first - 1) != "memory") continue;
    const std::filesystem::path all = root / (is_version_2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    auto group = std::filesystem::path(line.substr(second + 1)).relative_path();
    while (true) {
      std::ifstream file(all / group / (is_version_2 ? "memory.max" : "memory.limit_in_bytes"));
      double limit = 0;  // "max" is not a number
      if (file >> limit) memory = std::min(memory, Bytes(limit));
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return memory;
}

Bytes available_memory()
{
  return of_meminfo("/", "MemAvailable:");
}

}  // namespace isobar::exec

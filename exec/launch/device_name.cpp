#include "exec/launch/device_name.hpp"

#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

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

/// The number that a file holds; none for "max" or without the file.
std::optional<Bytes> number_in(const std::filesystem::path& path)
{
  std::ifstream file(path);
  double number = 0;
  return file >> number ? std::optional(Bytes(number)) : std::nullopt;
}

/// Names of the files of a version of control groups.
struct GroupFiles {
  const char* folder;  // of the outermost group
  const char* limit;
  const char* used;
  const char* kept_files[2];  // lines of memory.stat: files in memory that the kernel drops when it is needed
};
constexpr GroupFiles version_1 = {"sys/fs/cgroup/memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file", "total_active_file"}};
constexpr GroupFiles version_2 = {"sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

Bytes kept_files_of(const std::filesystem::path& group, const GroupFiles& files)
{
  std::ifstream file(group / "memory.stat");
  std::string key;
  Bytes kept;
  for (double bytes = 0; file >> key >> bytes;) {
    if (key == files.kept_files[0] || key == files.kept_files[1]) kept += Bytes(bytes);
  }
  return kept;
}

/// Lowers `memory` to what a group limits it to.
void limit_by_group(MachineMemory& memory, const std::filesystem::path& group, const GroupFiles& files)
{
  const auto limit = number_in(group / files.limit);
  if (!limit) return;
  memory.total = std::min(memory.total, *limit);
  const Bytes used = number_in(group / files.used).value_or(Bytes(0)) - kept_files_of(group, files);
  const Bytes available = std::max(Bytes(0), *limit - std::max(Bytes(0), used));
  if (available >= memory.available) return;
  memory.available = available;
  memory.is_limited = true;
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

MachineMemory machine_memory(const std::filesystem::path& root)
{
  MachineMemory memory = {of_meminfo(root, "MemTotal:"), of_meminfo(root, "MemAvailable:")};
  if (memory.available == Bytes(0)) memory.available = memory.total;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "4:memory:/PATH" or "4:cpu,memory:/PATH" of version 1, "0::/PATH" of version 2. In a container, PATH may not
    // exist.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && (',' + controllers + ',').find(",memory,") == std::string::npos) continue;
    const GroupFiles& files = controllers.empty() ? version_2 : version_1;
    auto group = std::filesystem::path(line.substr(second + 1)).relative_path();
    while (true) {
      limit_by_group(memory, root / files.folder / group, files);
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return memory;
}

std::string text_of(const MachineMemory& memory)
{
  const auto* const limited = memory.is_limited ? " under the limit of the control group" : "";
  return fmt::format("{} available{}", isobar::text_of(memory.available), limited);
}

}  // namespace isobar::exec

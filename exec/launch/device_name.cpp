#include "exec/launch/device_name.hpp"

#include <fmt/format.h>

#include <fstream>

namespace isobar::exec {

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

Bytes available_memory()
{
  std::ifstream file("/proc/meminfo");
  std::string key;
  double kibibytes = 0;
  for (std::string unit; file >> key >> kibibytes; std::getline(file, unit)) {
    if (key == "MemAvailable:") return Bytes(1024 * kibibytes);
  }
  return Bytes(0);
}

}  // namespace isobar::exec

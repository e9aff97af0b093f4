#pragma once

#include "sim/platform/platform.hpp"
#include "tests/support/temporary_folder.hpp"

#include <filesystem>
#include <string>
#include <vector>

/// Platform files of tests/instances, and those that a test writes.
namespace isobar::sim {

/// The file of a platform in tests/instances.
inline std::filesystem::path instance(const std::string& name)
{
  return std::filesystem::path(ISOBAR_SOURCE_DIR) / "tests/instances/platforms" / (name + ".xml");
}

/// Loads a platform of tests/instances.
inline Cluster load(const std::string& name)
{
  return Platform::load(instance(name)).cluster();
}

inline std::vector<std::string> names_of(const Cluster& cluster)
{
  std::vector<std::string> names;
  for (const auto& device : cluster.devices) names.push_back(device.name);
  return names;
}

/// The first two lines of a platform file.
inline const std::string xml_head =
    "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n";

/// Writes a platform file, or a file that one needs, into a folder that is deleted when the process ends.
inline std::filesystem::path write_platform(const std::string& content, const std::string& name = "test.xml")
{
  static const testing_support::TemporaryFolder folder;
  return folder.write(name, content);
}

}  // namespace isobar::sim

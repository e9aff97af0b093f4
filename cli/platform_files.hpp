#pragma once

#include "sim/platform/platform.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// Loads a platform, with a devices file unless `devices_file` is "". `left_out`: see sim::Platform::load.
sim::Platform load_platform(const std::string& file, const std::string& devices_file,
                            const std::vector<std::string>& left_out = {});

/// Prints to stderr which parts of the platform file are ignored.
void print_notes(const sim::Platform& platform);

/// What identifies a platform, and the files that it was read from.
struct PlatformFiles {
  std::string hash;
  std::vector<std::string> files;
};
/// Loads a platform and returns its PlatformFiles as JSON: work for a child process, since a process holds one
/// platform.
std::string platform_files_json(const std::string& file, const std::string& devices_file);
PlatformFiles platform_files_from(const std::string& json);

}  // namespace isobar::cli

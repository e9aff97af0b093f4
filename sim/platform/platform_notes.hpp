#pragma once

#include "sim/scan/prescan.hpp"

#include <string>
#include <vector>

namespace isobar::sim {

/// Lists the ignored parts of a platform file, one line each: "file:line: …" (see Platform::notes).
std::vector<std::string> platform_notes(const PlatformScan& scan, const std::string& file);

}  // namespace isobar::sim

#pragma once

#include "core/cluster/cluster.hpp"
#include "sim/platform/endpoints.hpp"
#include "sim/scan/prescan.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// Lists what a platform file leaves unsaid or has in vain, one line each: "file:line: …" (see Platform::notes).
/// `links` are the machines of the endpoints' devices.
std::vector<std::string> platform_notes(const PlatformScan& scan, const Endpoints& endpoints,
                                        const std::vector<std::optional<MachineLink>>& links, const std::string& file);

}  // namespace isobar::sim

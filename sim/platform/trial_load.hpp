#pragma once

#include "sim/platform/endpoints.hpp"
#include "sim/platform/engine_loader.hpp"
#include "sim/scan/prescan.hpp"

#include <string>

namespace isobar::sim {

/// Loads a platform into SimGrid in a child process and checks its speeds, routes and machines there
/// (platform_check.hpp, machines.hpp), so
/// that a crash or hang of SimGrid becomes a fault. Takes at most 600 s. `file` is the name that messages give.
/// @throws InputError for the first fault, for a crash of SimGrid, and for a load that takes too long; Interrupted.
void load_in_child(const std::string& file, const EngineSource& source, const PlatformScan& scan,
                   const Endpoints& endpoints);

}  // namespace isobar::sim

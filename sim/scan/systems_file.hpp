#pragma once

#include "core/cluster/cluster.hpp"

#include <map>
#include <string>

namespace isobar::sim {

/// Reads what was measured of training systems on a platform, by name of the system (docs/formats/platform.md).
/// @throws InputError "name:line: …", one line for each fault.
std::map<std::string, MeasuredSystem> systems_from_yaml(const std::string& text, const std::string& name);

}  // namespace isobar::sim

#pragma once

#include "sim/scan/prescan.hpp"

#include <string>
#include <vector>

namespace isobar::sim {

/// Sets the props of a devices file (docs/formats/platform.md) on the hosts that its patterns match. `*` stands for any
/// text, `?` for one character. Of several patterns that match, later ones win, prop by prop; all win over the platform
/// file. O(patterns x hosts).
/// @throws InputError "name:line: …", one line for each fault, such as a pattern that matches no host.
void apply_devices_file(std::vector<ScannedHost>& hosts, const std::string& text, const std::string& name);

/// Whether the whole `text` matches. O(pattern x text).
bool matches_pattern(const std::string& pattern, const std::string& text);

}  // namespace isobar::sim

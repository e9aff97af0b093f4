#pragma once

#include "sim/platform/prescan.hpp"

#include <string>
#include <vector>

namespace isobar::sim {

/// Puts the props of a devices file (docs/formats.md) on the hosts that its patterns match. `*` stands for any text,
/// `?` for one character; where several patterns match, the later ones win, prop by prop, and all win over the platform
/// file. O(patterns x hosts).
/// @throws InputError "name:line: …", one line for each fault; a pattern that matches no host is one.
void apply_devices_file(std::vector<ScannedHost>& hosts, const std::string& text, const std::string& name);

/// True when the whole `text` matches. O(pattern x text).
bool matches_pattern(const std::string& pattern, const std::string& text);

}  // namespace isobar::sim

#pragma once

#include "core/units.hpp"
#include "sim/platform/props.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// A host of a platform file, whichever element makes it.
struct ScannedHost {
  std::string name;
  int line = 0;
  std::size_t zone = 0;  ///< index of the zone or cluster that it stands in, in the order of the file
  Props props;           ///< `site` is that of the nearest enclosing zone where the host has none of its own
  bool computes = true;  ///< false: its speed is 0
};

/// What a platform file says in words that SimGrid does not know, or has forgotten after loading.
struct PlatformScan {
  struct Link {
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  std::vector<ScannedHost> hosts;               ///< in the order of the file
  std::map<std::string, Link> profiled_links;   ///< nominal values of links with a profile, by SimGrid's names
  std::map<std::string, Bytes> link_in_flight;  ///< flows x window of links that are written out, by SimGrid's names
  std::map<std::string, Bytes> zone_in_flight;  ///< flows x window of the links that stand directly in a zone
  double profile_speedup = 1;                   ///< see Cluster::profile_speedup
  std::optional<int> config_line;               ///< of the first <config>
  std::string without_config;                   ///< the text with blanks for each <config>; lines stay
  std::vector<std::string> profiles;            ///< texts of the profile files, in the order of the file
};

/// The text of a profile file by the name that the platform file gives it; nothing if there is no such file.
using ProfileReader = std::function<std::optional<std::string>(const std::string& file)>;

/// Finds what is wrong with a platform file before SimGrid sees it, where SimGrid would stop the process, give no line,
/// or take nonsense in silence. A platform has at most `most_hosts` (sim/platform/radical.hpp). What it does not know
/// it leaves to SimGrid. O(size of the file + hosts).
/// @throws InputError "name:line: …", one line for each fault, first line first.
PlatformScan scan_platform(const std::string& text, const std::string& name, const ProfileReader& read_profile);

}  // namespace isobar::sim

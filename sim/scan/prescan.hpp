#pragma once

#include "core/units.hpp"
#include "sim/scan/props.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// A disk of a host.
struct ScannedDisk {
  std::string name;
  std::optional<Bytes> capacity;
  BytesPerSecond read;
  BytesPerSecond write;
};

/// A host of a platform file, from any element that creates one.
struct ScannedHost {
  std::string name = {};
  int line = 0;
  std::size_t zone = 0;                     ///< index of its zone or cluster, in the order of the file
  Props props = {};                         ///< without a `site` of its own, that of the nearest enclosing zone
  bool computes = true;                     ///< false: its speed is 0
  std::vector<FlopsPerSecond> speeds = {};  ///< by power state
  std::vector<ScannedDisk> disks = {};      ///< in the order of the file
  bool lacks_host_link = false;             ///< in a zone with routing Cluster, which joins hosts by their host_link
  std::string memory_prop = {};             ///< a prop that other programs give for memory, such as "ram"; "": none
  bool has_foreign_gpus = false;            ///< has props of GPUs that ElastiSim reads
};

/// What a line of a platform file has.
struct ScannedNote {
  int line = 0;
  std::string text;
};

/// What a platform file contains that SimGrid does not read, or no longer knows after loading.
struct PlatformScan {
  struct Link {
    Seconds latency;
    BytesPerSecond bandwidth;
  };
  std::vector<ScannedHost> hosts;               ///< in the order of the file
  std::map<std::string, Link> profiled_links;   ///< nominal values of links with a profile, by SimGrid's names
  std::map<std::string, Bytes> link_in_flight;  ///< flows x window of <link>s, by SimGrid's names
  std::map<std::string, Bytes> zone_in_flight;  ///< flows x window of the links directly in a zone
  std::vector<std::string> fat_pipe_clusters;   ///< whose links are FATPIPE; SimGrid reads this and shares them
  double profile_speedup = 1;                   ///< see Cluster::profile_speedup
  std::vector<ScannedNote> ignored;             ///< parts without effect, and why
  /// Routes whose gateway is in a zone inside the zone that they lead to, which has hosts elsewhere, too.
  std::vector<ScannedNote> inner_gateways;
  /// The text with blanks for each <config>, and a zone around a topology at the top, which SimGrid 4.1 cannot load
  /// there. Line numbers do not change.
  std::string text_to_load;
  std::vector<std::string> profiles;  ///< texts of the profile files, in the order of the file
};

/// Returns the text of a profile file, named as in the platform file; nothing if it does not exist.
using ProfileReader = std::function<std::optional<std::string>(const std::string& file)>;

/// Scans a platform file for faults for which SimGrid would abort, give no line, or silently accept nonsense. Leaves
/// what it does not know to SimGrid. A platform has at most `most_hosts` (sim/scan/radical.hpp).
/// O(size of the file + hosts).
/// @throws InputError "name:line: …", one line for each fault, first line first.
PlatformScan scan_platform(const std::string& text, const std::string& name, const ProfileReader& read_profile);

}  // namespace isobar::sim

#pragma once

#include "sim/scan/platform_names.hpp"
#include "sim/scan/prescan.hpp"
#include "sim/scan/profile.hpp"
#include "sim/scan/xml_element.hpp"

#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace isobar::sim {

/// Checks that SimGrid can read the profiles of a platform file, and computes the largest factor by which they speed
/// the platform up. Fills `profiled_links`, `profile_speedup` and `profiles` of the scan.
class ProfileScan {
 public:
  /// All arguments must outlive this.
  ProfileScan(ElementReader& reader, const PlatformNames& names, const ProfileReader& read_profile, PlatformScan& scan)
      : reader_(reader), names_(names), read_profile_(read_profile), scan_(scan)
  {
  }

  void scan_host(const pugi::xml_node& node);
  /// Call after the link's names have been added to `names`.
  void scan_link(const pugi::xml_node& node);
  void scan_trace(const pugi::xml_node& node);
  /// Call when all traces and hosts are known, because SimGrid connects them at the end of the file.
  void connect_trace(const pugi::xml_node& node);
  /// Call last, when `link_in_flight` and `zone_in_flight` of the scan are complete.
  void apply_to_windows();

 private:
  enum class Kind { Speed, Bandwidth, Latency, State };
  struct Trace {
    int line;
    ProfileRange range;
  };

  void scan_attribute(const pugi::xml_node& node, const char* name, Kind kind);
  std::optional<ProfileRange> read(const pugi::xml_node& node, const std::string& file);
  std::optional<ProfileRange> range_of(const std::string& text, const std::string& name, int first_line,
                                       double periodicity, int line);
  void apply_to_link(const std::string& name, Kind kind, const ProfileRange& range);
  void speed_up(double factor);

  ElementReader& reader_;
  const PlatformNames& names_;
  const ProfileReader& read_profile_;
  PlatformScan& scan_;
  bool latency_changes_ = false;
  std::unordered_map<std::string, Trace> traces_;
  std::unordered_map<std::string, int> lines_;                 // of profiles, by file or by trace
  std::set<std::pair<std::string, std::string>> connections_;  // kind and trace
};

}  // namespace isobar::sim

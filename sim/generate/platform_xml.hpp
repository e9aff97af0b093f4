#pragma once

#include "core/cluster/cluster.hpp"
#include "core/units.hpp"
#include "sim/generate/device_types.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::sim {

// The parts of a platform file that generators and the importer write.

/// As SimGrid's attributes spell them: "15.7Tf", "1.25GBps", "51.5ms". Like all texts here it reads back to the same
/// double, a time to that or the next.
std::string attribute_of(FlopsPerSecond speed);
std::string attribute_of(BytesPerSecond bandwidth);
std::string attribute_of(Seconds time);
/// As props spell them: "312 TFLOP/s", "16 GB".
std::string prop_of(FlopsPerSecond speed);
std::string prop_of(Bytes size);
/// As options spell them, without a space: "312TFLOP/s", "1.25GB/s", "16GB", "100ms".
std::string option_of(FlopsPerSecond speed);
std::string option_of(BytesPerSecond bandwidth);
std::string option_of(Bytes size);
std::string option_of(Seconds time);

/// Names and values as a file will have them (sim/platform/props.hpp reads them).
using WrittenProps = std::vector<std::pair<std::string, std::string>>;

/// A host on a link of its own to the switch of its star.
struct StarHost {
  std::string name;
  FlopsPerSecond speed;
  WrittenProps props;
  BytesPerSecond bandwidth;  ///< of its link, per direction
  Seconds latency;           ///< of its link
};

/// Hosts around one switch: what SimGrid's XML calls routing "Cluster".
struct Star {
  std::string name;
  WrittenProps props;
  std::vector<StarHost> hosts;
};

/// A device of this type, as its data sheet says; `plain` without a type.
Device device_of(const std::string& type, const Device& plain);
/// The host of a device, which takes its name.
StarHost host_of(const Device& device, BytesPerSecond bandwidth, Seconds latency);

/// One line for each type among `groups`: its rates and their source. For devices without a type, nothing.
std::vector<std::string> notes_on(const std::vector<DeviceGroup>& groups);
/// What `flows` and `window` mean and where the window comes from; nothing without flows.
std::vector<std::string> notes_on_window(const std::optional<std::size_t>& flows, Bytes window);

/// Devices of one place.
struct Site {
  std::string name;
  std::vector<DeviceGroup> devices;
  BytesPerSecond lan_bandwidth;           ///< of each device's link, per direction
  Seconds lan_rtt;                        ///< between two devices of the site
  std::optional<BytesPerSecond> egress;   ///< all that leaves the site together
  std::optional<BytesPerSecond> ingress;  ///< all that enters it together
};

/// What was measured from a device of one site to a device of another.
struct WanPath {
  BytesPerSecond bandwidth;
  Seconds rtt;
};

/// Sites and what lies between them.
struct Sites {
  std::vector<Site> sites;
  std::vector<WanPath> paths;        ///< paths[from * sites + to]; the diagonal is not used
  std::optional<std::size_t> flows;  ///< of a transfer between sites; absent: no window law
  Bytes window;                      ///< bytes in flight per flow

  const WanPath& path(std::size_t from, std::size_t to) const { return paths[from * sites.size() + to]; }
  /// What is left of a measured round trip when the networks of the two sites are taken off; negative for a
  /// measurement that contradicts them.
  Seconds wan_rtt(std::size_t from, std::size_t to) const
  {
    return path(from, to).rtt - (sites[from].lan_rtt + sites[to].lan_rtt) / 2;
  }
};

/// The whole file of one star. `command` makes it again, `notes` say where its numbers come from.
std::string platform_of_star(const std::string& command, const std::vector<std::string>& notes, Star star);
/// The whole file of several sites, whose names must be fit for that (importer). Bandwidths are rounded to whole bytes
/// a second and latencies to whole nanoseconds.
std::string platform_of_sites(const std::string& command, const std::vector<std::string>& notes, const Sites& sites,
                              const Device& plain);

}  // namespace isobar::sim

#pragma once

#include "core/cluster/cluster.hpp"
#include "core/text/xml_writer.hpp"
#include "core/units.hpp"
#include "sim/generate/device_groups.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::sim {

// Parts of the platform files that generators and the importer write.

/// Quantities as SimGrid's attributes spell them: "15.7Tf", "1.25GBps", "51.5ms". Like all texts here they read back to
/// the same double; a time to the same or an adjacent one.
std::string attribute_of(FlopsPerSecond speed);
std::string attribute_of(BytesPerSecond bandwidth);
std::string attribute_of(Seconds time);
/// Quantities as props spell them: "312 TFLOP/s", "16 GB".
std::string prop_of(FlopsPerSecond speed);
std::string prop_of(Bytes size);
std::string prop_of(Seconds time);
/// Quantities as options spell them, without a space: "312TFLOP/s", "1.25GB/s", "16GB", "100ms".
std::string option_of(FlopsPerSecond speed);
std::string option_of(BytesPerSecond bandwidth);
std::string option_of(Bytes size);
std::string option_of(Seconds time);

/// Names and values of props as a file has them (sim/scan/props.hpp reads them).
using WrittenProps = std::vector<std::pair<std::string, std::string>>;

/// Writes the declaration, the document type, a comment of `notes` and the start tag of the platform.
void open_platform(XmlWriter& xml, const std::vector<std::string>& notes);
void write_props(XmlWriter& xml, const WrittenProps& props);
/// The prop of a root zone that holds the command which makes the file again.
WrittenProps made_by(const std::string& command);

/// A host with its own link to the switch of its star.
struct StarHost {
  std::string name;
  FlopsPerSecond speed;
  WrittenProps props;
  BytesPerSecond bandwidth;  ///< of its link, per direction
  Seconds latency;           ///< of its link
};

/// Hosts around one switch: a zone with routing "Cluster" in SimGrid's XML.
struct Star {
  std::string name;
  WrittenProps props;
  std::vector<StarHost> hosts;
};

/// A device with the rates and memory of its type's data sheet, with the type's name as given; `plain` for an empty
/// type.
Device device_of(const std::string& type, const Device& plain);
/// The host of a device, with the device's name.
StarHost host_of(const Device& device, BytesPerSecond bandwidth, Seconds latency);

/// One line for each type in `groups`, with its rates and their source; none for devices without a type.
std::vector<std::string> notes_on(const std::vector<DeviceGroup>& groups);
/// What `flows` and `window` mean and the source of the window; empty without flows.
std::vector<std::string> notes_on_window(const std::optional<std::size_t>& flows, Bytes window);

/// Devices in one place, each on a link of its own (`devices`) or in nodes (`nodes`).
struct Site {
  std::string name;
  std::vector<DeviceGroup> devices;
  std::vector<DeviceGroup> nodes;                  ///< the devices of each node
  std::optional<BytesPerSecond> inside_bandwidth;  ///< of each device's link in its node; absent: that of its type
  Seconds inside_rtt;                              ///< between two devices of a node
  BytesPerSecond lan_bandwidth;                    ///< of each device's or node's link, per direction
  Seconds lan_rtt;                                 ///< between devices of the site, of two nodes if it has nodes
  std::optional<BytesPerSecond> egress;            ///< cap on all that leaves the site
  std::optional<BytesPerSecond> ingress;           ///< cap on all that enters the site
};

/// What was measured from a device of one site to a device of another site.
struct WanPath {
  BytesPerSecond bandwidth;
  Seconds rtt;
};

/// Sites and the paths between them.
struct Sites {
  std::vector<Site> sites;
  std::vector<WanPath> paths;        ///< paths[from * sites + to]; the diagonal is not used
  std::optional<std::size_t> flows;  ///< of a transfer between sites; absent: no window law
  Bytes window;                      ///< bytes in flight per flow

  const WanPath& path(std::size_t from, std::size_t to) const { return paths[from * sites.size() + to]; }
  /// The measured round trip less the parts within the two sites; negative for a measurement that contradicts them.
  Seconds wan_rtt(std::size_t from, std::size_t to) const
  {
    return path(from, to).rtt - (sites[from].lan_rtt + sites[to].lan_rtt) / 2;
  }
};

/// The XML text of a platform of one star. `command` generates it again; `notes` become its first comment.
std::string platform_of_star(const std::string& command, const std::vector<std::string>& notes, Star star);
/// The XML text of a platform of several sites. Their names consist of letters, digits, `-`, `_` and `:`. Bandwidths
/// are rounded to whole bytes per second and latencies to whole nanoseconds.
std::string platform_of_sites(const std::string& command, const std::vector<std::string>& notes, const Sites& sites,
                              const Device& plain);

}  // namespace isobar::sim

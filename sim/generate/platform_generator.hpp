#pragma once

#include "core/units.hpp"
#include "sim/generate/device_groups.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

// Platform files generated from a few options. Each function returns the whole XML text (SimGrid's DTD 4.1) and needs
// no SimGrid. It is deterministic: the same options give the same bytes on every machine. The prop made_by of a file
// holds the command that generates it again; its first comment names the sources of the numbers. Members are named
// after the command's options, which docs/platforms.md describes for users.
//
// @throws InputError "--option: what is wrong; what to write" for an option that is out of range or has no effect.

/// Most devices of a generated platform.
inline constexpr std::size_t most_devices = 65'536;
/// Most sites. Each ordered pair of them has a link and a route.
inline constexpr std::size_t most_sites = 128;
/// Bytes in flight per TCP flow: median bandwidth x round-trip time of one flow between GCP regions 45 ms or more apart
/// (iperf of cirquit/hivemind-multi-cloud, April-May 2023, 220 samples).
inline constexpr Bytes measured_window = Bytes(2.65e6);

/// Most nodes of a site, whose routes are as many as their square while SimGrid reads the file.
inline constexpr std::size_t most_nodes = 1024;

/// Defaults for devices without a type.
inline constexpr FlopsPerSecond plain_speed = FlopsPerSecond(1e13);
inline constexpr Bytes plain_memory = Bytes(16e9);
inline constexpr BytesPerSecond plain_inside_bandwidth = BytesPerSecond(32e9);  ///< PCI Express 4.0 with 16 lanes

/// `isobar platform generate sky`: the emulated cluster of Sky Computing (arXiv 2202.11836; hpcaitech/SkyComputing).
///
/// node-0 is the data server, node-1 ... node-(N-1) are the workers, each on its own link to one switch. Worker r has
/// speed P100 / (1 + (speed_spread - 1) u32[r]), memory / (1 + 2 u22[r]) and bandwidth / (1 + u32[r]). uS is numpy's
/// default_rng(S).random(), as published. The published code never applied the factor of the bandwidth.
struct SkyOptions {
  std::size_t nodes = 64;                             ///< --nodes, with the server; 2 to most_devices
  double speed_spread = 2;                            ///< --speed-spread: bound on the slowest worker's slowdown; >= 1
  Bytes memory = Bytes(15780.0 * 1024 * 1024);        ///< --memory of a worker before division
  BytesPerSecond bandwidth = BytesPerSecond(1.25e9);  ///< --bandwidth of the server, and of a worker before division
  Seconds latency = Seconds(1e-3);                    ///< --latency of each node's link
};
std::string generate_sky(const SkyOptions& options);

/// `isobar platform generate star`: devices device-0, device-1, ..., each on its own link to one switch.
///
/// The speed of device i is divided by 1 + (speed_spread - 1) u[3i], its memory by 1 + (memory_spread - 1) u[3i+1] and
/// its bandwidth by 1 + (bandwidth_spread - 1) u[3i+2], where u = numpy's default_rng(seed).random().
struct StarOptions {
  std::vector<DeviceGroup> devices = {{1024, ""}};  ///< --devices "1024" or "8xT4+8xA10"
  std::optional<FlopsPerSecond> speed;  ///< --speed (float32) of devices without a type; plain_speed without it
  std::optional<Bytes> memory;          ///< --memory of devices without a type; plain_memory without it
  BytesPerSecond bandwidth = BytesPerSecond(1.25e9);  ///< --bandwidth of each device's link, per direction
  Seconds latency = Seconds(5e-5);                    ///< --latency of each device's link
  double speed_spread = 1;                            ///< --speed-spread, >= 1
  double memory_spread = 1;                           ///< --memory-spread, >= 1
  double bandwidth_spread = 1;                        ///< --bandwidth-spread, >= 1
  std::uint64_t seed = 0;                             ///< --seed
};
std::string generate_star(const StarOptions& options);

/// The wide-area link between each pair of sites, per direction.
struct WideAreaOptions {
  BytesPerSecond wan_bandwidth = BytesPerSecond(1.25e8);  ///< --wan-bandwidth of each directed pair of sites
  Seconds wan_rtt = Seconds(0.1);                         ///< --wan-rtt between devices of two sites; >= lan_rtt
  std::optional<BytesPerSecond> egress;                   ///< --egress: cap on all that leaves a site
  std::optional<BytesPerSecond> ingress;                  ///< --ingress: cap on all that enters a site
  std::optional<std::size_t> flows;  ///< --flows: TCP flows of a transfer between sites; absent: no window law
  std::optional<Bytes> window;       ///< --window: bytes in flight per flow, measured_window without it; needs flows
};

/// `isobar platform generate sites`: sites with devices site-0.0, site-0.1, ..., site-1.0, ... and an equal wide-area
/// link between each pair of sites, per direction.
struct SitesOptions : WideAreaOptions {
  std::size_t sites = 2;                         ///< --sites, 1 to most_sites
  std::vector<DeviceGroup> devices = {{8, ""}};  ///< --devices of each site
  /// --site-devices: of each site in turn, for unequal sites; `sites` and `devices` are then ignored. Empty: equal
  /// sites.
  std::vector<std::vector<DeviceGroup>> site_devices;
  std::optional<FlopsPerSecond> speed;  ///< --speed (float32) of devices without a type; plain_speed without it
  std::optional<Bytes> memory;          ///< --memory of devices without a type; plain_memory without it
  BytesPerSecond lan_bandwidth = BytesPerSecond(1.25e9);  ///< --lan-bandwidth of each device's link, per direction
  Seconds lan_rtt = Seconds(2e-4);                        ///< --lan-rtt between two devices of a site
};
std::string generate_sites(const SitesOptions& options);

/// `isobar platform generate nodes`: sites of nodes. A node's devices site-S.N.0, site-S.N.1, ... have links of their
/// own to the node's switch and share the node's link to the site.
struct NodesOptions : WideAreaOptions {
  std::vector<std::vector<NodeGroup>> nodes = {{{1, {8, ""}}}};  ///< --nodes of each site in turn
  std::optional<FlopsPerSecond> speed;  ///< --speed (float32) of devices without a type; plain_speed without it
  std::optional<Bytes> memory;          ///< --memory of devices without a type; plain_memory without it
  /// --inside-bandwidth of each device's link in its node, per direction; without it that of the device's type, or
  /// plain_inside_bandwidth.
  std::optional<BytesPerSecond> inside_bandwidth;
  Seconds inside_rtt = Seconds(2e-5);                      ///< --inside-rtt between two devices of a node
  BytesPerSecond lan_bandwidth = BytesPerSecond(1.25e10);  ///< --lan-bandwidth of each node's link, per direction
  Seconds lan_rtt = Seconds(1e-4);  ///< --lan-rtt between devices of two nodes of a site; >= inside_rtt
};
std::string generate_nodes(const NodesOptions& options);

/// `isobar platform import MATRIX.csv --sites SITES.csv`: sites with measured paths between them.
///
/// Matrix: columns from, to, bandwidth_gbit_s, rtt_ms; one row per ordered pair of sites (per pair with `undirected`).
/// Sites: columns site, devices ("8xT4+8xA10"), lan_bandwidth_gbit_s, lan_rtt_ms and, for a cap, egress_gbit_s,
/// ingress_gbit_s. They choose sites of the matrix and set the order of devices. Columns are in any order below a
/// header line; lines that begin with # are comments. Device i of site S is named S.i.
/// @throws InputError with every fault of a file, "file:line: column: what is wrong; what to write".
struct ImportOptions {
  std::filesystem::path matrix;      ///< the MATRIX.csv argument
  std::filesystem::path sites;       ///< --sites
  bool undirected = false;           ///< --undirected: each pair has one row, for both directions
  std::optional<std::size_t> flows;  ///< --flows; absent: a transfer gets the measured rate
  std::optional<Bytes> window;       ///< --window, measured_window without it; needs flows
};
std::string import_matrix(const ImportOptions& options);

}  // namespace isobar::sim

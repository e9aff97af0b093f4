#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "sim/platform/platform.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

/// Random plans of all kinds on random small platforms.
namespace isobar::predictions {

/// A platform as the simulator has it, and a cluster with its devices, which may have interference besides.
struct RandomPlatform {
  sim::Platform platform;
  Cluster cluster;
};

/// What a random platform has besides devices d0, d1, … of unequal speeds in two sites.
struct PlatformNeeds {
  std::size_t devices = 1;
  bool has_data_server = false;
  bool has_machines = false;
  bool has_interference = false;
};

/// The devices have a link of their own for each pair; or links up and down to their site's switch, with a trunk
/// between sites; or they are in nodes that share a bus and a backbone. Latencies may be 0, and some links are fat
/// pipes. Machines have one to three devices each, whose copies may pass one switch.
RandomPlatform random_platform(std::mt19937_64& random, const PlatformNeeds& needs);

struct RandomCase {
  RandomPlatform on;
  Workload workload;
  Plan plan;  ///< without claims
};

enum class Kind {
  Chain,       ///< a stage on each device under `sequential`, `gpipe` or `1f1b`
  Schedule,    ///< of other schedules: several stages on a device, two-part backward passes, given orders
  Replicas,    ///< stages that divide the micro-batches in different ways
  UnlikeCuts,  ///< pipelines side by side, each with its own cuts
  Shards,      ///< replicas of one to three shards with any shares
  Grids,       ///< of shards
  Operators,   ///< divided by groups of devices
  Tiers,       ///< stages that live in their machines
  Experts,     ///< that replicas divide, alone or with shards
  Tied         ///< stages that share matrices, with replicas and shards
};
inline constexpr Kind every_kind[] = {Kind::Chain, Kind::Schedule,  Kind::Replicas, Kind::UnlikeCuts, Kind::Shards,
                                      Kind::Grids, Kind::Operators, Kind::Tiers,    Kind::Experts,    Kind::Tied};
std::string_view name_of(Kind kind);

/// The case of a seed, which holds on its platform.
RandomCase random_case(Kind kind, std::uint64_t seed);

}  // namespace isobar::predictions

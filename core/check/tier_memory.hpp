#pragma once

#include "core/cluster/cluster.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// What a plan needs of one memory.
struct TierMemory {
  std::string name;  ///< as predicted.peak_memory_bytes has it: "gpu0", "node0" or, of a disk, "node0/nvme0"
  Tier tier = Tier::Device;
  Bytes need;
  Bytes has;
};

/// The most that a plan needs of each memory that it uses: devices by rank, then machines and their disks. What ranks
/// need of one machine adds up. A device also needs what was measured of the plan's system. `played` is of the plan's
/// Program, and `faults_of` has found no fault in its placement.
std::vector<TierMemory> tier_memories(const Plan& plan, const Cluster& cluster, const PlayedProgram& played);

/// The memory of a platform that a plan names so, with what it has; none if the platform has none of the name.
std::optional<TierMemory> memory_named(const std::string& name, const Cluster& cluster);

}  // namespace isobar

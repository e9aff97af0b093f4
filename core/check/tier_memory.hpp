#pragma once

#include "core/cluster/cluster.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// A memory of the platform and the ranks of a plan that hold something there: a device, or the machine or disk that
/// several ranks may share.
struct UsedMemory {
  std::string name;  ///< as predicted.peak_memory_bytes has it: "gpu0", "node0" or, of a disk, "node0/nvme0"
  Tier tier = Tier::Device;
  std::vector<std::size_t> ranks;
  Bytes has;
  // What was measured of the plan's system:
  Bytes workspace = {};  ///< taken besides what the ranks hold
  double fraction = 1;   ///< of memory that is taken to memory that is used

  /// What is taken where the ranks hold `held` together.
  Bytes taken_by(Bytes held) const { return (held + workspace) * fraction; }
};

/// The memories of a plan's devices by rank, then those of their machines and disks.
std::vector<UsedMemory> used_memories(const Plan& plan, const Cluster& cluster);

/// What a plan needs of one memory.
struct TierMemory {
  std::string name;  ///< as in UsedMemory
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

#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace isobar::allocators {

/// What a step of a job takes of each resource in one choice of its devices.
struct PlacedStep {
  /// What it holds in a memory: `resident` throughout, `activations` besides during its turns.
  struct Memory {
    std::size_t place = 0;
    Bytes resident;
    Bytes activations;
  };

  Seconds alone;
  std::vector<std::pair<std::size_t, Seconds>> busy;  ///< by device or link; each at most once
  std::vector<Memory> memory = {};                    ///< each place at most once
};

/// Jobs, each with one or more choices of devices.
struct PlacementProblem {
  std::vector<std::vector<PlacedStep>> jobs;  ///< the choices of each job
  std::vector<std::size_t> kinds;             ///< of each job; jobs of one kind have the same choices
  std::size_t devices = 0;                    ///< the first resources; links follow them
  std::size_t resources = 0;
  std::vector<Bytes> memory;  ///< of each place
};

/// Placements of all jobs together.
struct JointPlacements {
  /// A choice for each job.
  struct Placement {
    std::vector<std::size_t> choices;
    Seconds round;  ///< its bound: the longest step alone, or the largest sum of work on a device or link
  };

  std::vector<Placement> best;  ///< by rising bound; none where the jobs fit in memory in no way
  Seconds bound;                ///< no placement of these choices has a lower bound
  bool is_exact = true;         ///< every placement was searched or excluded
};

/// Groups of devices 0 to `devices` - 1 to plan a job on, at most `most`, the whole first, each ascending. They are all
/// subsets where these are no more; else all runs of consecutive units, which are equal runs of devices, as many as
/// `most` allows. Callers number devices that belong together in sequence.
std::vector<std::vector<std::size_t>> device_groups(std::size_t devices, std::size_t most);

/// The `count` placements with the least bounds of a round; of equal bounds, those with the least sum of squared loads
/// and steps. Jobs that share a device take turns, so it holds all residents and the largest activations. Jobs of one
/// kind that only trade places count as one placement.
///
/// Depth first over the jobs, with a bound from what is placed, the least step of the others, and the least device time
/// in all. After `most_steps` extensions it ends: `best` is then the best so far, and `bound` still holds for all.
/// Deterministic. Worst case: choices^jobs.
JointPlacements best_placements(const PlacementProblem& problem, std::size_t count, std::uint64_t most_steps = 200'000);

}  // namespace isobar::allocators

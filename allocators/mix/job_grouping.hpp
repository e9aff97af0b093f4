#pragma once

#include "core/jobs/grouping.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// What a grouping is made for.
struct GroupingGoal {
  GroupSize size{};
  bool at_once = false;              ///< all pairs at once, each on a set of its own; of pairs only
  std::optional<Bytes> memory = {};  ///< of a device; none: not counted
  std::uint64_t seed = 1;            ///< of the random baseline
};

/// The time until each of some jobs has made its steps, which share a set of devices: from the end of a job on, the
/// others have rounds of their own. A round takes max(max over resources of Σ_j busy_j, max_j alone_j), which strict
/// rotation attains for pairs, and for any number of jobs with two resources (docs/sharing.md).
Seconds group_time(std::vector<JobProfile> jobs);

/// No grouping of the jobs of one set takes less: max(max over resources of Σ_j n_j busy_j, max_j n_j alone_j).
Seconds least_group_time(const std::vector<JobProfile>& jobs);

/// Chooses who shares devices with whom.
///
/// - Pairs: a matching of the largest weight Σ min(n_i, n_j) (alone_i + alone_j - round_ij), exact, with its proof.
///   Weights are whole units of 1 ns (or 2^k ns, where they are large), rounded up, so that the bound holds.
/// - Pairs at once: of the perfect matchings with the least longest round, one with the least sum of rounds, with a
///   proof of both.
/// - Triples, auto: a matching, and matchings of the groups again, until no merge saves time. Finding the best is
///   strongly NP-hard (3-PARTITION); the bound is that of the sums by resource.
///
/// Baselines beside it: greedy (the largest saving first), most unlike first (the largest with the smallest share of
/// computation), Muri's rule (`group_jobs` by efficiency), random. Deterministic. 1,000 jobs take some seconds.
/// @returns the grouping; none where pairs at once cannot be made of all jobs: an odd number of jobs with the same
/// devices, or memory.
std::optional<Grouping> choose_groups(const std::vector<JobProfile>& jobs, const GroupingGoal& goal);

}  // namespace isobar::allocators

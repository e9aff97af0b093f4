#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Time in whole ticks, so that periods have a greatest common divisor.
using Ticks = std::int64_t;

/// What a job sends over a link, again in each period: `rate` of the link's bandwidth in [begin, end).
struct DemandPiece {
  std::size_t link = 0;
  Ticks begin = 0;
  Ticks end = 0;  ///< 0 ≤ begin < end ≤ period
  double rate = 1;
};

struct PeriodicJob {
  Ticks period = 1;
  std::vector<DemandPiece> pieces;
};

/// Later begins of jobs on devices of their own that meet on links, and how much of what they want to send at a time is
/// more than a link's bandwidth.
struct LinkShifts {
  std::vector<Ticks> shifts;   ///< of each job, from 0 to below its period
  std::vector<double> excess;  ///< of each link: E, the mean over time of max(0, Σ rates - 1); its score is 1 - E
  bool is_exact = true;        ///< no shifts have a smaller sum of excess
};

/// E of each link for given shifts: the mean over the least common multiple of the periods of the jobs on it. Where
/// that holds more than a million edges, the mean over as many periods as hold them.
/// Source: S. Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI 2024.
std::vector<double> excess_of(const std::vector<PeriodicJob>& jobs, std::size_t links,
                              const std::vector<Ticks>& shifts);

/// Shifts with the least sum of excess over the links.
///
/// The excess is piecewise linear in the shifts and breaks only where an edge of one job's demand meets one of
/// another's on a link, so it is least where such meetings tie all jobs of a link together. Two jobs try all
/// differences of edges modulo the greatest common divisor of their periods; more jobs are tied to those before them,
/// one after the other, with the excess of those tied so far as the bound. Where jobs and links form a forest, each
/// link is solved on its own and the shifts are added up along the tree; where they form a cycle, all links of it are
/// searched together, since the shifts around a cycle must agree modulo the periods.
///
/// Exponential in the jobs of a link (periodic scheduling is NP-hard): after `most_steps` evaluations the best shifts
/// so far are returned, not exact. Deterministic.
LinkShifts best_shifts(const std::vector<PeriodicJob>& jobs, std::size_t links, std::uint64_t most_steps = 200'000);

}  // namespace isobar::allocators

#pragma once

#include "core/jobs/job.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Closed forms of jobs that take turns on the same devices in strict rotation, and send over one link in the order of
/// their turns. A step of job j computes c_j (busy[1]), then sends m_j (busy[2]), of which the end e_j is not covered
/// by its own computation: alone_j = c_j + e_j. `shared_round_time` is the round: max(Σc, Σm, max(c_j + e_j)). Source:
/// a cycle-time argument over the event graph, docs/sharing.md.

/// (n-1)·T + max_k (Σ_{i≤k} c_i + Σ_{i≥k} m_i): from rest until the last job has made `rounds` steps, for jobs without
/// overlap of their own (alone = c + m), T their round. At least one round.
Seconds time_of_rounds(const std::vector<JobStepTimes>& steps, std::uint64_t rounds);

/// The order of turns in which `time_of_rounds` is least: jobs that compute less than they send by rising c, then the
/// others by falling m. Source: S. M. Johnson, Naval Research Logistics Quarterly 1, 1954.
std::vector<std::size_t> johnson_order(const std::vector<JobStepTimes>& steps);

/// max(m/K, m - b(K-1)/K): what remains of a gradient sync of m in K equal buckets after a backward pass of b.
Seconds exposed_sync(Seconds sync, Seconds backward, std::uint64_t buckets);

/// T(1:1) + (k-1)·alone_a: a round with k turns of a for one of b. More turns hide nothing more.
Seconds round_with_turns(const JobStepTimes& a, const JobStepTimes& b, std::uint64_t turns);

/// 1 / max(Σρ, Σ(1-ρ), 1) with ρ = c / alone: the largest rate, relative to its rate alone, that all jobs can have at
/// once, under any discipline. For jobs without overlap of their own.
double max_min_rate(const std::vector<JobStepTimes>& steps);

/// A step whose turn takes `hand_over` more, as of what is swapped: it counts as computation.
JobStepTimes with_hand_over(const JobStepTimes& step, Seconds hand_over);

/// max(out, in) / bandwidth: what a hand-over takes that swaps `out` for `in` over the copy lanes, which work at the
/// same time, with nothing hidden.
Seconds swap_time(Bytes out, Bytes in, BytesPerSecond bandwidth);

/// The m/c below 1 of two equal jobs without overlap that get a speed-up S of sharing: S - 1, for S from 1 to 2. The
/// other is its inverse.
double sync_ratio_of(double speedup);

}  // namespace isobar::allocators

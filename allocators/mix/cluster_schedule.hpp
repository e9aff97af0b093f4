#pragma once

#include "allocators/mix/job_groups.hpp"
#include "core/jobs/job.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::allocators {

/// Which of the jobs that have arrived get devices.
enum class Policy {
  Fifo,      ///< by arrival; a job that does not fit holds up all behind it
  Backfill,  ///< by arrival; later jobs pass one that does not fit
  Srtf,      ///< shortest remaining time first, preempting
  Srsf,      ///< shortest remaining service (time × devices) first, preempting
  Tiresias,  ///< queues by attained device-seconds, preempting; in a queue running jobs first, then by arrival
  Muri,      ///< groups by Muri's efficiency share devices
  Crossover  ///< groups by the time that they save share devices
};
/// Their names in --policy, in this order.
const std::vector<std::string>& policy_names();
/// Whether a scheduling policy lets several jobs hold the same devices.
bool shares_devices(Policy policy);

/// Whose rules a schedule follows where ours differ from those of the simulator published with Muri.
enum class Semantics {
  Corrected,  ///< a job is charged its start cost once, when it starts or resumes
  Published   ///< at every event while it runs; Tiresias' queues are left after whole seconds and entered at their end
};

struct ScheduleRules {
  Policy policy{};
  Semantics semantics{};
  double step_factor = 1.015;         ///< a step in a cluster over a step alone; Muri's simulator takes 1.015
  std::optional<Seconds> round = {};  ///< decisions at its multiples only; none: at every arrival and end
  bool charges_moves = false;         ///< a running job that gets other nodes is charged its start cost again
  bool groups_by_service = false;     ///< Muri and Crossover take jobs in the order of Tiresias, else of Srsf
  RoundForm form = RoundForm::Overlap;
  std::size_t largest_group = 4;
};

/// Attained device-seconds at which a job enters Tiresias's second and third queue.
inline constexpr double service_queues[] = {3250, 7200};

/// Why a job can never run on these nodes (devices of each); "" if it can.
std::string fault_of_gang(std::size_t devices, const std::vector<std::size_t>& nodes);

/// Plays a trace on nodes of equal devices.
///
/// Gangs: a job takes its devices from the first node with enough free ones; one that needs more than the largest node
/// has takes the first empty nodes, whole. Those that preempt place all jobs again at each decision, in their order.
/// @param jobs by arrival; every one must fit (`fault_of_gang`).
/// Deterministic. O(jobs that have arrived · log) a decision, besides the matchings of Muri and Crossover.
/// @throws Interrupted.
ClusterRun schedule_jobs(const std::vector<Job>& jobs, const std::vector<std::size_t>& nodes,
                         const ScheduleRules& rules, const OnDecision& on_decision = {});

}  // namespace isobar::allocators

#pragma once

#include "core/jobs/job.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::results {

/// Times that no schedule of a trace beats (docs/cluster.md).
struct ClusterBounds {
  Seconds mean_jct;
  Seconds p99_jct;
  Seconds makespan;
};

/// How well a cluster served the jobs of a trace. JCT: job completion time, from arrival to end.
struct ClusterMetrics {
  Seconds mean_jct;
  Seconds median_jct;
  Seconds p99_jct;   ///< of n times, sorted, the one at 0.99 n, rounded down and counted from 0
  Seconds makespan;  ///< from time 0 to the last end
  Seconds mean_waiting;
  Seconds longest_wait;  ///< of any job at a stretch: what starvation makes long
  std::string longest_waiting_job;
  double mean_slowdown = 1;  ///< of JCT over the job's time alone
  double largest_slowdown = 1;
  /// Mean and largest JCT over the JCT on 1/N of the cluster, where N is the number of jobs in the cluster, averaged
  /// over the job's stay.
  double mean_fairness_ratio = 1;
  double largest_fairness_ratio = 1;
  double jain_index = 1;                                      ///< of the jobs' speeds, each relative to its speed alone
  double devices_busy_fraction = 0;                           ///< device-time held, of all until the makespan
  std::array<double, step_resources.size()> busy_fraction{};  ///< of each resource
  ClusterBounds bounds;
};

/// @param devices of the cluster
/// @param step_factor a step in the cluster over a step alone
/// @param shares whether jobs may share devices; if not, bounds count devices as held for whole steps
/// O(jobs · log jobs).
ClusterMetrics cluster_metrics(const std::vector<Job>& jobs, const ClusterRun& run, std::size_t devices,
                               double step_factor, bool shares);

/// A number of a schedule: a key of its JSON and a column of tables.
struct ClusterNumber {
  std::string name;
  bool is_count = false;
};
/// The numbers of a schedule, in the order of docs/formats/cluster.md.
const std::vector<ClusterNumber>& cluster_numbers();

/// The metrics as a JSON object, with the keys of docs/formats/cluster.md.
std::string cluster_metrics_to_json(const ClusterMetrics& metrics);
/// The metrics as a table for people.
std::string cluster_metrics_to_text(const ClusterMetrics& metrics);
/// The header line of `cluster_jobs_to_csv`.
inline constexpr std::string_view cluster_jobs_header =
    "job,model,devices,arrival_s,first_start_s,end_s,jct_s,alone_s,waiting_s,longest_wait_s,starts";
/// One line of CSV for each job, below a header.
std::string cluster_jobs_to_csv(const std::vector<Job>& jobs, const ClusterRun& run, double step_factor);

}  // namespace isobar::results

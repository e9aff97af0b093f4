#pragma once

#include "allocators/mix/cluster_schedule.hpp"
#include "core/jobs/job_trace.hpp"
#include "results/cluster_metrics.hpp"
#include "sim/platform/platform.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// How a trace is scheduled, as `isobar cluster`, sweeps and baselines take it.
struct ClusterOptions {
  std::string trace;
  std::string platform;  ///< its name
  TraceOptions reading;
  bool at_once = false;
  std::optional<double> load;  ///< how many times as fast jobs arrive
  std::string policy;
  std::string semantics = "corrected";
  std::string round;
  std::optional<double> step_factor;
  bool charges_moves = false;
  std::string order;
  std::string form;
  std::optional<std::size_t> largest_group;
};

/// The rules that the options ask for. @throws InputError "--option: …" for a wrong value, and for values that do not
/// go together.
allocators::ScheduleRules rules_from(const ClusterOptions& options);

/// A schedule with what it was made from.
struct ScheduledTrace {
  JobTrace trace;                  ///< its jobs that fit, as they arrive
  std::vector<std::size_t> nodes;  ///< devices of each
  ClusterRun run;
  results::ClusterMetrics metrics;
  Seconds took;
};

/// Schedules a trace that was read with the options. @throws InputError for a platform with several types of devices,
/// and for a trace of which no job fits.
ScheduledTrace schedule_trace(const ClusterOptions& options, JobTrace trace, const sim::Platform& platform);

/// Schema isobar-cluster-run/1 (docs/formats/cluster.md), on several lines. Deterministic but for `wall`.
std::string scheduled_to_json(const ClusterOptions& options, const ScheduledTrace& scheduled);
/// Its numbers, in the order of `results::cluster_numbers()`.
std::vector<std::optional<double>> numbers_of(const ClusterOptions& options, const ScheduledTrace& scheduled);

}  // namespace isobar::cli

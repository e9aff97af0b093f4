#pragma once

#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace isobar {

/// What a training step occupies, in the order of `JobStepTimes::busy`.
inline constexpr std::array<const char*, 3> step_resources = {"input", "compute", "network"};

/// How long a training step takes alone, and how long it occupies each resource of its devices. Parts may overlap, so
/// their sum may be more than `alone`; parts that are not counted make it less.
struct JobStepTimes {
  Seconds alone;
  std::array<Seconds, step_resources.size()> busy;

  bool operator==(const JobStepTimes&) const = default;
};

/// A training job of a cluster. It holds all of its devices whenever it runs (a gang).
struct Job {
  std::string name;
  std::string model;
  std::size_t devices = 1;
  Seconds arrival;
  double steps = 0;
  JobStepTimes step;
  Seconds start_cost;  ///< from getting its devices to its first step
};

/// What became of a job.
struct JobRun {
  Seconds first_start;
  Seconds end;
  Seconds waiting;       ///< without devices, from arrival to end
  Seconds longest_wait;  ///< without devices at a stretch
  std::uint64_t starts = 0;
};

/// What became of all jobs of a trace.
struct ClusterRun {
  std::vector<JobRun> jobs;         ///< in the order of the trace
  Seconds device_time;              ///< that devices were held, summed over devices
  std::uint64_t decisions = 0;      ///< how often devices were given to jobs
  std::uint64_t shared_starts = 0;  ///< starts of jobs on devices that they share with others
};

/// Jobs that hold the same devices from a decision to the next one.
struct Holding {
  std::vector<std::size_t> jobs;     ///< indices into the trace
  std::vector<std::size_t> devices;  ///< numbered node by node
};

/// Sees each decision: its time and all holdings from then on.
using OnDecision = std::function<void(Seconds now, const std::vector<Holding>& holdings)>;

}  // namespace isobar

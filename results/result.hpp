#pragma once

#include "core/plan/plan.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// Metrics of a replica of a stage, per step, averaged over the steps.
struct StageMetrics {
  std::string device;
  Seconds compute;    ///< forward, backward and update
  Seconds send;       ///< activations and gradients that it sends, and its part of collectives
  Seconds idle;       ///< step time minus what its device computes for all its stages
  Bytes peak_memory;  ///< of its device with all its stages; maximum over all steps
};

/// How a device computes and communicates at the same time, per step, averaged over the steps. Where its lanes of one
/// kind are busy together, the time counts once.
struct DeviceOverlap {
  std::string device;
  Seconds compute;
  Seconds communication;
  Seconds hidden;  ///< communication while the device computes

  Seconds exposed() const { return communication - hidden; }
};

/// Traffic of one link in a step.
struct LinkMetrics {
  std::string name;
  Bytes bytes;               ///< payload of all transfers over it
  double busy_fraction = 0;  ///< of the step time, with at least one transfer in progress
};

/// How well a step uses the devices of its plan.
struct Utilization {
  std::optional<double> tokens_per_s;  ///< none for models without sequences
  /// Model FLOPs utilization: forward and backward work, without recomputation, divided by what the devices could do in
  /// the step at the platform's rates for the workload's dtype. None where layers have measured times.
  std::optional<double> mfu_fraction;
  std::optional<double> bubble_fraction;  ///< of the devices' time in a step, without compute
};

/// The input files of a simulation, as the user named them, with hashes to recognise them.
struct ResultInputs {
  Fingerprint platform;                ///< the hash covers its devices file and profile files
  std::optional<std::string> devices;  ///< the devices file, if one was given
  Fingerprint workload;
  std::optional<Fingerprint> profile;  ///< measured times of layers; none: work divided by nominal speed
};

/// Result of one simulation or one measured run: result.json (schema isobar-result/1, docs/formats/result.md).
struct Result {
  Seconds step_time;                          ///< mean over the steps
  std::optional<StepInterval> interval = {};  ///< of step_time; none where no training system is known
  Seconds step_bound;
  Utilization utilization;  ///< empty in results of older versions
  std::vector<Seconds> step_times;
  std::vector<StageMetrics> stages;
  std::vector<DeviceOverlap> overlaps;  ///< by rank, of plans whose devices divide operators
  std::vector<LinkMetrics> links;
  /// How long layers took: "rate", FLOPs over the device's rate; "operators" (ComputeModel), or "profile", as measured.
  /// Empty in results of older versions.
  std::string compute;
  std::uint64_t activities = 0;
  std::optional<std::size_t> acting_devices = {};            ///< that acted for all equal ones; none: each acted
  std::string folding = {};                                  ///< what their step leaves out of the whole one, or empty
  std::vector<std::pair<std::string, std::string>> network;  ///< SimGrid's network model and every factor
  std::string simgrid_version;
  Plan plan;  ///< as simulated, without stamp and wall time
  ResultInputs inputs;
  Seconds simulate_time;  ///< wall time of the engine's run only; under "wall" in the file
};

/// Deterministic except for "wall".
std::string result_to_json(const Result& result);
/// @throws InputError naming file, line and key of every fault.
Result result_from_json(const std::string& text, const std::string& name);

/// Sums up a trace while it is recorded. O(stages) memory.
class StageMeter : public TraceSink {
 public:
  /// `acts_for`: by rank, the one whose events count as its own; empty: each rank's count.
  explicit StageMeter(std::size_t ranks, std::vector<std::size_t> acts_for = {})
      : ranks_(ranks), acts_for_(std::move(acts_for))
  {
  }
  void record(const TraceEvent& event) override;

  /// Metrics of the stages of the plan that was executed. The trace held `steps` steps with a mean of `step_time`.
  std::vector<StageMetrics> stages(const Plan& plan, std::uint64_t steps, Seconds step_time) const;

 private:
  struct Sums {
    Seconds compute;
    Seconds send;
  };
  struct Rank {
    std::map<std::uint32_t, Sums> stages;
    Bytes peak_memory;
  };
  std::vector<Rank> ranks_;
  std::vector<std::size_t> acts_for_;
};

}  // namespace isobar::results

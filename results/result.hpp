#pragma once

#include "core/plan/plan.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// What one stage did in a step, averaged over the steps.
struct StageMetrics {
  std::string device;
  Seconds compute;    ///< forward, backward and update
  Seconds send;       ///< transfers that it sends: activations on, gradients back, and its part of an AllReduce
  Seconds idle;       ///< step time without compute
  Bytes peak_memory;  ///< the largest of all steps
};

/// What one link carried in a step.
struct LinkMetrics {
  std::string name;
  Bytes bytes;               ///< payload of all transfers over it
  double busy_fraction = 0;  ///< of the step's time, with at least one transfer under way
};

/// How well a step uses the devices of its plan.
struct Utilization {
  std::optional<double> tokens_per_s;  ///< none for models without sequences
  /// Model FLOPs utilization: forward and backward, without recomputation, over what the devices could do in the step
  /// at the platform's rates for the workload's dtype. None where layers have measured times.
  std::optional<double> mfu_fraction;
  std::optional<double> bubble_fraction;  ///< of the devices' time in a step: without compute
};

/// The files of a simulation, as they were named, to find and recognise them again.
struct ResultInputs {
  Fingerprint platform;                ///< the hash covers its devices file and profile files
  std::optional<std::string> devices;  ///< the devices file, where one was named
  Fingerprint workload;
  std::optional<Fingerprint> profile;  ///< what layers took when they were measured; none: work over nominal speed
};

/// The outcome of one simulation, or of one measured run: result.json (schema isobar-result/1, docs/formats.md).
struct Result {
  Seconds step_time;  ///< mean over the steps
  Seconds step_bound;
  Utilization utilization;  ///< empty in results of older versions
  std::vector<Seconds> step_times;
  std::vector<StageMetrics> stages;
  std::vector<LinkMetrics> links;
  std::uint64_t activities = 0;
  std::vector<std::pair<std::string, std::string>> network;  ///< the model and every factor
  std::string simgrid_version;
  Plan plan;              ///< what was simulated; without stamp and wall time
  ResultInputs inputs;    ///< on what
  Seconds simulate_time;  ///< wall clock of the engine's run alone; under "wall" in the file
};

/// Deterministic but for "wall".
std::string result_to_json(const Result& result);
/// @throws InputError naming file, line and key of every fault.
Result result_from_json(const std::string& text, const std::string& name);

/// Adds a trace up as it comes. O(ranks) memory.
class StageMeter : public TraceSink {
 public:
  explicit StageMeter(std::size_t ranks) : sums_(ranks) {}
  void record(const TraceEvent& event) override;

  /// The first `devices.size()` ranks as stages. `steps` is how many the trace held, `step_time` their mean.
  std::vector<StageMetrics> stages(const std::vector<std::string>& devices, std::uint64_t steps,
                                   Seconds step_time) const;

 private:
  struct Sums {
    Seconds compute;
    Seconds send;
    Bytes peak_memory;
  };
  std::vector<Sums> sums_;
};

}  // namespace isobar::results

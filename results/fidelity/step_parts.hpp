#pragma once

#include "core/compute/as_trained.hpp"
#include "core/plan/plan.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "results/fidelity/prediction.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// When a rank computed in the step that counts.
struct RankTimes {
  Seconds busy;                                        ///< of forward and backward passes
  Seconds last_backward;                               ///< its end, since the begin of the first step
  Seconds updates;                                     ///< what they take
  std::vector<std::pair<Seconds, Seconds>> sums = {};  ///< collectives of replicas: begin and end of each

  /// How long they last after the last backward pass.
  Seconds sums_after_passes() const
  {
    Seconds all;
    for (const auto& [begin, end] : sums) all += std::max(Seconds(0), end - std::max(begin, last_backward));
    return all;
  }
};

/// Collects them, and the most memory that each rank holds on its device.
class StepTimes : public TraceSink {
 public:
  /// `step`: the one that counts.
  StepTimes(std::size_t ranks, std::uint64_t step) : ranks_(ranks), peaks_(ranks), step_(step) {}

  void record(const TraceEvent& event) override;
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override;

  const std::vector<RankTimes>& ranks() const { return ranks_; }
  const std::vector<Bytes>& peaks() const { return peaks_; }

 private:
  std::vector<RankTimes> ranks_;
  std::vector<Bytes> peaks_;
  std::uint64_t step_;
};

/// A stage of a pipeline, by the devices that have it: the first of them, what its layers take, and their model FLOPs.
struct PipelineStage {
  std::string device;
  std::size_t shards = 1;
  std::size_t replicas = 1;
  std::size_t parts = 0;  ///< apart from each other
  compute::PassParts passes = {};
  Flops work = {};
};

/// Devices that divide some stages and have others alone are one each, with their part of the work.
/// O(stages x shards + layers).
std::vector<PipelineStage> pipeline_of(const Plan& plan, const compute::AsTrained& trained);

/// What a step of a plan would take at the peak of its devices: the model FLOPs of the slowest stage, and the bubble of
/// the pipeline. `workload` is priced (compute::price). O(stages).
Seconds time_at_peak(const Plan& plan, const std::vector<PipelineStage>& stages, const Workload& workload,
                     const Cluster& cluster);

/// Divides a simulated step of a plan, which began at `begin`, into what takes it, on the pipeline's stage that
/// computes most. `ranks` are by the plan's devices.
RowParts parts_of(const Plan& plan, const std::vector<PipelineStage>& stages, const std::vector<RankTimes>& ranks,
                  Seconds begin, Seconds step);

}  // namespace isobar::results

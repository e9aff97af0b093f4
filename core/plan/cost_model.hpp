#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// What one transfer takes when nothing else is on its way.
struct TransferTimes {
  Seconds latency;  ///< before its first byte arrives
  Seconds data;     ///< while its bytes leave, and while they arrive: it occupies its lane so long

  Seconds total() const { return latency + data; }
};

/// A stage on its device, by index: the flat form that allocators work with.
struct StagePlacement {
  std::size_t device = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
};

/// The closed forms of docs/costs.md over one workload on one cluster. Prefix sums: a stage's work and memory cost
/// O(1). Does not see contention between transfers. Keeps references: workload and cluster must outlive it.
class CostModel {
 public:
  CostModel(const Workload& workload, const Cluster& cluster);

  const Workload& workload() const { return *workload_; }
  const Cluster& cluster() const { return *cluster_; }
  std::size_t layers() const { return forward_.size() - 1; }
  std::size_t devices() const { return speed_.size(); }

  /// Work of layers first..last on one micro-batch.
  Flops forward_work(std::size_t first, std::size_t last) const { return Flops(forward_[last + 1] - forward_[first]); }
  Flops backward_work(std::size_t first, std::size_t last) const
  {
    return Flops(backward_[last + 1] - backward_[first]);
  }
  /// f_i + b_i: layers first..last forward and backward on `device`, one micro-batch.
  Seconds compute_time(std::size_t device, std::size_t first, std::size_t last) const
  {
    return (forward_work(first, last) + backward_work(first, last)) / speed_[device];
  }
  /// The rate of a device in the workload's dtype.
  FlopsPerSecond speed(std::size_t device) const { return speed_[device]; }
  Seconds update_time(std::size_t device, std::size_t first, std::size_t last) const;

  /// Bytes across the cut before `layer`: activations forward, gradients back.
  Bytes boundary_output(std::size_t layer) const { return boundary_output_[layer]; }
  Bytes boundary_gradient(std::size_t layer) const { return boundary_gradient_[layer]; }
  /// Activations from the stage on device `from` to the stage on `to` that begins at `layer`.
  TransferTimes output_transfer(std::size_t from, std::size_t to, std::size_t layer) const;
  /// Gradients back over the same cut: from device `to`, whose stage begins at `layer`, to device `from`.
  TransferTimes gradient_transfer(std::size_t from, std::size_t to, std::size_t layer) const;
  /// Input of one micro-batch from the data server to `device`; zeros when input is local.
  TransferTimes input_transfer(std::size_t device) const;
  /// What a formula with this communication counts of a transfer (see counted_path).
  static Seconds counted(Communication communication, TransferTimes transfer);

  /// Memory of a stage that holds layers first..last with `in_flight` micro-batches' activations (docs/costs.md).
  Bytes memory(std::size_t first, std::size_t last, std::uint64_t in_flight) const;
  /// True when `memory` does not depend on micro-batches in flight (MemoryModel::Sky).
  bool memory_ignores_schedule() const;

  /// s_i from a stage's compute time and what it sends, as counted: activations to the next stage, gradients to the one
  /// before. Played communication counts as overlapped.
  static Seconds stage_cost(Communication communication, Seconds compute, Seconds send);
  /// The objective's formula from the largest s_i and the sum of all; of `step`, which has none, that of `pipeline`.
  static Seconds objective_of(Objective objective, std::uint64_t microbatches, Seconds bottleneck, Seconds sum);

  /// What is known of a placement. O(stages), one pass, no allocation; with objective `step` the recurrence besides.
  struct Evaluation {
    Seconds objective;
    Seconds bottleneck;  ///< largest s_i
    Seconds sum;         ///< of s_i
    Seconds pipeline;    ///< (M-1) x bottleneck + sum
    Seconds sequential;  ///< one micro-batch alone, compute and transfers
    Seconds step_bound;  ///< no schedule finishes a step earlier
  };
  Evaluation evaluate(const std::vector<StagePlacement>& stages, const Goal& goal) const;

 private:
  const Workload* workload_;
  const Cluster* cluster_;
  std::vector<FlopsPerSecond> speed_;
  std::vector<double> forward_;      // prefix sums, FLOP
  std::vector<double> backward_;     // prefix sums, FLOP
  std::vector<double> update_;       // prefix sums, FLOP
  std::vector<double> parameters_;   // prefix sums, count
  std::vector<double> activations_;  // prefix sums, bytes
  std::vector<double> sky_memory_;   // prefix sums, bytes
  std::vector<Bytes> boundary_output_;
  std::vector<Bytes> boundary_gradient_;
};

}  // namespace isobar

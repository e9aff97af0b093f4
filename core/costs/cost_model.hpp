#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/layer_times.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/transfer_times.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar {

/// A stage on its device: the flat form that allocators work with.
struct StagePlacement {
  std::size_t device = 0;  ///< index in the cluster's devices
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
};

/// The costs of stages and placements of one workload on one cluster, by the formulas of docs/costs.md.
///
/// `first` and `last` are layers, both inclusive; devices are indices. Contention between transfers is ignored. Stage
/// costs take O(1), from prefix sums; construction takes O(layers + edges + devices). Keeps references: workload and
/// cluster must outlive it.
class CostModel {
 public:
  /// `held` is for schedules that hold more micro-batches than 1f1b: `memory` then counts held[n - 1] of them in place
  /// of n in flight, and the last entry in place of more.
  CostModel(const Workload& workload, const Cluster& cluster, std::vector<std::uint64_t> held = {});
  /// The costs of another workload or cluster under the same schedule.
  CostModel of(const Workload& workload, const Cluster& cluster) const { return {workload, cluster, held_}; }

  const Workload& workload() const { return *workload_; }
  const Cluster& cluster() const { return *cluster_; }
  std::size_t layers() const { return cuts_ - 1; }
  std::size_t devices() const { return on_.size(); }

  /// Forward and backward time of layers first..last on `device` for one micro-batch.
  Seconds forward_time(std::size_t device, std::size_t first, std::size_t last) const
  {
    return sum_of(forward_, device, first, last) / on_[device].rate;
  }
  Seconds backward_time(std::size_t device, std::size_t first, std::size_t last) const
  {
    return sum_of(backward_, device, first, last) / on_[device].rate;
  }
  /// f_i + b_i.
  Seconds compute_time(std::size_t device, std::size_t first, std::size_t last) const
  {
    return (sum_of(forward_, device, first, last) + sum_of(backward_, device, first, last)) / on_[device].rate;
  }
  /// Of `backward_time`, what the gradients of parameters take.
  Seconds weight_time(std::size_t device, std::size_t layer) const;

  /// The work of a layer by which layers are weighed: by reference_times.
  const LayerWork& layer_work(std::size_t layer) const { return work_[layer]; }
  /// Work of layers first..last for one micro-batch: of kind 0 by reference_times, of others that which devices have
  /// beside these: by their type's times (Workload::times), or FLOPs where these are not known.
  Flops forward_work(std::size_t first, std::size_t last, std::size_t kind = 0) const
  {
    return Flops(forward_[kind * cuts_ + last + 1] - forward_[kind * cuts_ + first]);
  }
  Flops backward_work(std::size_t first, std::size_t last, std::size_t kind = 0) const
  {
    return Flops(backward_[kind * cuts_ + last + 1] - backward_[kind * cuts_ + first]);
  }
  std::size_t work_kinds() const { return forward_.size() / cuts_; }
  /// The kind of work that a device computes, at its `rate`.
  std::size_t work_kind(std::size_t device) const { return on_[device].row / cuts_; }
  FlopsPerSecond rate(std::size_t device) const { return on_[device].rate; }
  /// The largest rate at which a device computes work of kind 0 in a pass of a layer, for bounds: its `rate`, if that
  /// is its kind.
  FlopsPerSecond speed(std::size_t device) const { return speed_[device]; }
  /// Whether two devices take the same for each layer.
  bool computes_like(std::size_t device, std::size_t other) const
  {
    return on_[device].rate == on_[other].rate && on_[device].row == on_[other].row;
  }
  /// Time of the optimizer's update of layers first..last on `device`, once per step.
  Seconds update_time(std::size_t device, std::size_t first, std::size_t last) const;

  /// Bytes across the cut before `layer` (0..layers) for one micro-batch: activations forward, gradients back.
  Bytes boundary_output(std::size_t layer) const { return boundary_output_[layer]; }
  Bytes boundary_gradient(std::size_t layer) const { return boundary_gradient_[layer]; }
  /// Transfer of activations from the stage on device `from` to the stage on `to` that begins at `layer`.
  TransferTimes output_transfer(std::size_t from, std::size_t to, std::size_t layer) const;
  /// Transfer of gradients over the same cut: from device `to`, whose stage begins at `layer`, back to device `from`.
  TransferTimes gradient_transfer(std::size_t from, std::size_t to, std::size_t layer) const;
  /// Transfer of one micro-batch's input from the data server to `device`; zeros if input is local.
  TransferTimes input_transfer(std::size_t device) const;
  /// The part of a transfer that a formula with this communication counts (see counted_path).
  static Seconds counted(Communication communication, TransferTimes transfer);

  /// The parameters of layers first..last on a device without others, which has copies of matrices that they use
  /// (Layer::tied_to).
  double parameters(std::size_t first, std::size_t last) const;
  /// Memory of a device with layers first..last that holds the activations of `in_flight` micro-batches
  /// (docs/costs.md): of a stage, or of neighbouring ones that exchange nothing with other devices over the cuts
  /// between them. The device has no other layers.
  Bytes memory(std::size_t first, std::size_t last, std::uint64_t in_flight) const;
  /// The same of a device that may have other layers, whose matrices they may use.
  Bytes memory_beside_others(std::size_t first, std::size_t last, std::uint64_t in_flight) const;
  /// The part of `memory` for transfers over the cut before `layer` (0..layers): activations and gradients.
  Bytes buffers(std::size_t layer) const;
  /// The part of `memory` for what a pass needs besides, which a device with several stages has once.
  Bytes workspace() const;
  /// True if `memory` does not depend on micro-batches in flight (MemoryModel::Sky).
  bool memory_ignores_schedule() const;

  /// s_i: the cost of a stage from its compute time and its counted transfers, activations to the next stage and
  /// gradients to the previous one. Played communication counts as overlapped.
  static Seconds stage_cost(Communication communication, Seconds compute, Seconds send);
  /// The objective from the largest s_i and the sum of all s_i. For `step` and `dtfm`, which have none, `pipeline`'s.
  static Seconds objective_of(Objective objective, std::uint64_t microbatches, Seconds bottleneck, Seconds sum);

  /// The costs of a placement.
  struct Evaluation {
    Seconds objective;
    Seconds bottleneck;  ///< largest s_i
    Seconds sum;         ///< of s_i
    Seconds pipeline;    ///< (M-1) x bottleneck + sum
    Seconds sequential;  ///< one micro-batch alone, compute and transfers
    Seconds step_bound;  ///< no order of whole passes finishes a step earlier
  };
  /// Evaluates a placement: at least one stage, in chain order. One pass in O(stages) without allocation; for objective
  /// `step` also the recurrence (step_recurrence.hpp), in O(stages · micro-batches).
  Evaluation evaluate(const std::vector<StagePlacement>& stages, const Goal& goal) const;

 private:
  struct OnDevice {
    FlopsPerSecond rate;
    std::size_t row = 0;  // where the prefix sums of its work begin
  };

  /// A matrix that a layer uses, too.
  struct Tie {
    std::size_t layer = 0;
    std::size_t owner = 0;
    double parameters = 0;
    double part = 0;  // of the owner's
  };

  void find_ties();
  /// Calls `visit` with each tie of whose matrix a device with layers first..last and no others has a copy.
  template <typename Visit>
  void for_each_copy(std::size_t first, std::size_t last, Visit visit) const
  {
    std::size_t copied = 0;  // owners come after it
    for (const Tie& tie : ties_) {
      const bool is_used = first <= tie.layer && tie.layer <= last && tie.owner < first;
      if (!is_used || tie.owner < copied) continue;
      visit(tie);
      copied = tie.owner + 1;  // several layers of the device use one copy
    }
  }
  void add_kind(const std::vector<LayerWork>& work);
  void add_devices(const std::vector<LayerTimes>* reference);
  Flops sum_of(const std::vector<double>& sums, std::size_t device, std::size_t first, std::size_t last) const
  {
    const double* own = sums.data();
    if (has_kinds_) own += on_[device].row;  // searches with one kind do not wait for the row
    return Flops(own[last + 1] - own[first]);
  }

  const Workload* workload_;
  const Cluster* cluster_;
  std::vector<std::uint64_t> held_;
  std::size_t cuts_;                   // before and after layers
  std::vector<LayerWork> work_;        // by layer
  bool has_kinds_ = false;             // several of them
  std::vector<OnDevice> on_;           // by device
  std::vector<FlopsPerSecond> speed_;  // by device
  std::vector<double> forward_;        // prefix sums of work, of each kind
  std::vector<double> backward_;       // likewise
  std::vector<double> update_;         // likewise
  std::vector<double> parameters_;     // prefix sums, count
  std::vector<double> activations_;    // prefix sums, bytes
  std::vector<double> sky_memory_;     // prefix sums, bytes
  std::vector<Tie> ties_;              // by owner and layer; none of a workload that has the copies of a plan
  std::vector<Bytes> boundary_output_;
  std::vector<Bytes> boundary_gradient_;
};

}  // namespace isobar

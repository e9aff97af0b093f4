#pragma once

#include "allocators/chain/memory_reach.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace isobar::allocators {

/// Weights of an objective alpha x max + beta x sum of stage costs. The step is at least that of its own turns and
/// costs (docs/certificates.md): (M-1, 1), or (0, M) where micro-batches run one at a time.
struct ObjectiveWeights {
  double alpha = 0;
  double beta = 0;
};
ObjectiveWeights weights_of(const Goal& goal);

/// A problem in flat arrays, for searches over orders of devices.
///
/// - Kinds: devices that no plan can tell apart (speed, memory, paths) are one kind.
/// - Groups: kinds are grouped by place. There is one group for each place that paths tell apart or, if these are more
///   than `most_groups`, coarser ones. A transfer to a group takes as long as one to its nearest device other than the
///   sender: exact for places, a lower bound for coarser groups. Without transfers there is one group.
/// - Turns: a limit holds for a stage's turn. That is its cost or, for the step, the part of its compute that no two
///   micro-batches share; the turns of each lane are limited too.
/// - Levels: they distinguish stages by the number of stages after them, where memory or turns depend on it.
///
/// O(devices² x places) time in the worst case, O(devices² + kinds x (groups x sizes + layers x levels)) memory.
class StageTables {
 public:
  /// Where memory needs no levels, turns get at most `most_levels`. `each_step` is called between layers and between
  /// devices, and may throw. Keeps a reference to the cost model.
  StageTables(const CostModel& cost, const Goal& goal, std::size_t most_groups, const std::function<void()>& each_step,
              std::size_t most_levels = 1);

  const CostModel& cost() const { return *cost_; }
  const Goal& goal() const { return goal_; }
  ChainSchedule schedule() const { return schedule_; }
  ObjectiveWeights weights() const { return weights_; }
  std::size_t layers() const { return layers_; }
  std::size_t devices() const { return kind_of_device_.size(); }
  std::size_t kinds() const { return devices_of_kind_.size(); }
  std::size_t groups() const { return groups_; }
  std::size_t levels() const { return levels_; }
  std::size_t level_of(std::size_t stages_after) const { return std::min(stages_after, levels() - 1); }

  std::size_t kind_of(std::size_t device) const { return kind_of_device_[device]; }
  const std::vector<std::uint32_t>& devices_of(std::size_t kind) const { return devices_of_kind_[kind]; }
  std::size_t group_of(std::size_t kind) const { return group_of_kind_[kind]; }
  /// True when groups are places, so that transfers between kinds are exact.
  bool places_are_exact() const { return places_are_exact_; }

  double slowness(std::size_t kind) const { return slowness_[kind]; }  ///< seconds per FLOP of `work`
  /// Seconds per FLOP of the layers' own work, at least: 1 / CostModel::speed of its devices.
  double least_slowness(std::size_t kind) const { return least_slowness_[kind]; }
  /// FLOPs of the layers before `end` that take their time on devices of a kind.
  double work(std::size_t kind, std::size_t end) const { return work_[row_[kind] + end]; }
  double compute(std::size_t kind, std::size_t first, std::size_t end) const
  {
    return (work(kind, end) - work(kind, first)) * slowness_[kind];
  }
  /// True when the objective is the step: limits hold for turns, not for costs.
  bool limits_turns() const { return goal_.objective == Objective::Step; }
  /// The compute that each micro-batch adds to a stage of this level, in seconds: what a limit holds for. It never
  /// shrinks with another layer.
  double turn(std::size_t level, std::size_t kind, std::size_t first, std::size_t end) const
  {
    if (!limits_turns() || schedule_ != ChainSchedule::OneForwardOneBackward) return compute(kind, first, end);
    const double forward = forward_[row_[kind] + end] - forward_[row_[kind] + first];
    const double backward = work(kind, end) - work(kind, first) - forward;
    return (std::max(forward, backward) + both_[level] * std::min(forward, backward)) * slowness_[kind];
  }
  /// The turn of the data server's lane to the first stage.
  double input_turn(std::size_t kind) const { return limits_turns() ? input_turn_[kind] : input_cost(kind); }

  /// Seconds of activations over the cut from a device of `kind` to each group; `groups()` entries.
  const double* outputs(std::size_t kind, std::size_t cut) const { return &output_[transfer_index(kind, cut)]; }
  /// Seconds of gradients over the cut from a device of `kind` back to each group.
  const double* gradients(std::size_t kind, std::size_t cut) const { return &gradient_[transfer_index(kind, cut)]; }

  /// Tabulates, by transfer_index, the transfers between devices whose lanes' turns are within the limit; infinite
  /// where there are none. For the step. O(kinds² x sizes).
  void transfers_within(double limit, std::vector<double>& outputs, std::vector<double>& gradients) const;
  std::size_t transfer_index(std::size_t kind, std::size_t cut) const
  {
    return (kind * sizes_ + size_of_cut_[cut]) * groups_;
  }
  const std::vector<double>& all_outputs() const { return output_; }
  const std::vector<double>& all_gradients() const { return gradient_; }

  /// Seconds of activations over the cut between two kinds, and of gradients back from `from` to `to`.
  double output(std::size_t from, std::size_t to, std::size_t cut) const
  {
    return path(from, to).transfer_time(cost_->boundary_output(cut)).value;
  }
  double gradient(std::size_t from, std::size_t to, std::size_t cut) const
  {
    return path(from, to).transfer_time(cost_->boundary_gradient(cut)).value;
  }

  /// Index of the cut's size; cuts with equal bytes have the same size.
  std::size_t size_of(std::size_t cut) const { return size_of_cut_[cut]; }
  std::size_t sizes() const { return sizes_; }

  /// Returns s_i of a stage. @see CostModel::stage_cost
  double stage_cost(double compute, double send) const
  {
    switch (goal_.communication) {
      case Communication::None:
        return compute;
      case Communication::Overlapped:
        return std::max(compute, send);
      case Communication::Serial:
      case Communication::Played:  // for the step's bound, whose largest is a turn
        return compute + send;
    }
    return compute;
  }
  /// Cost of the data server's transfer to the first stage.
  double input_cost(std::size_t kind) const { return stage_cost(0, input_[kind]); }

  bool fits(std::size_t level, std::size_t kind, std::size_t first, std::size_t end) const
  {
    return reach_.fits(memory_level(level), devices_of_kind_[kind].front(), first, end);
  }
  /// The furthest end that fits from `first`; `first` when none fits.
  std::size_t furthest(std::size_t level, std::size_t kind, std::size_t first) const
  {
    return reach_.furthest(memory_level(level), devices_of_kind_[kind].front(), first);
  }
  /// True when no stage of this kind that begins at `first` or earlier fits and ends at `end`.
  bool surely_too_long(std::size_t kind, std::size_t first, std::size_t end) const
  {
    return end > reach_.furthest_up_to(devices_of_kind_[kind].front(), first);
  }
  /// True when whatever fits still fits, and costs no more, without layers at either end: then only the longest stages
  /// matter to the bottleneck.
  bool is_hereditary() const { return is_hereditary_; }
  /// Likewise for memory only.
  bool memory_is_hereditary() const { return reach_.is_hereditary(); }

  /// Converts values of kinds to values of devices, in the order of the cluster.
  std::vector<double> by_device(const std::vector<double>& by_kind) const;
  /// The groups of the devices, as in a certificate; empty when there is one group.
  std::vector<std::size_t> groups_of_devices() const;

 private:
  std::size_t memory_level(std::size_t level) const { return std::min(level, reach_.levels() - 1); }
  const Path& path(std::size_t from, std::size_t to) const
  {
    return paths_[place_of_kind_[from] * places_ + place_of_kind_[to]];
  }
  void find_levels(std::size_t most_levels);
  void find_kinds(std::size_t most_groups, const std::function<void()>& each_device);
  void tabulate_transfers();

  const CostModel* cost_;
  Goal goal_;
  ChainSchedule schedule_;
  ObjectiveWeights weights_;
  std::size_t layers_;
  std::size_t levels_ = 1;
  std::size_t groups_ = 1;
  std::size_t sizes_ = 1;
  bool places_are_exact_ = true;
  bool is_hereditary_ = false;
  std::vector<double> work_;
  std::vector<double> forward_;  // likewise for the forward passes
  std::vector<double> both_;     // of each level: the share of micro-batches that hide no part of a turn
  std::vector<std::uint32_t> kind_of_device_;
  std::vector<std::vector<std::uint32_t>> devices_of_kind_;
  std::vector<std::uint32_t> group_of_kind_;
  std::vector<std::uint32_t> place_of_kind_;
  std::size_t places_ = 1;
  std::vector<Path> paths_;  // [place][place]
  std::vector<double> slowness_;
  std::vector<double> least_slowness_;
  std::vector<std::size_t> row_;  // of work_ and forward_
  std::vector<double> input_;
  std::vector<double> input_turn_;
  std::vector<std::uint32_t> size_of_cut_;
  std::vector<Bytes> output_bytes_;    // of each size
  std::vector<Bytes> gradient_bytes_;  // of each size
  std::vector<double> output_;         // [kind][size][group]
  std::vector<double> gradient_;       // [kind][size][group]
  MemoryReach reach_;
};

}  // namespace isobar::allocators

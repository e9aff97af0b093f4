#pragma once

#include "allocators/chain/path_table.hpp"
#include "allocators/chain/step_clock.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// A placement that values each move at the cost of the stages that the move touches: the inner loop of searches.
///
/// A move is first proposed, then valued and checked against memory, then applied or discarded by the next proposal:
///
///     if (costs.shift_boundary(3, 1) && costs.value_after().objective < best && costs.fits_after()) costs.apply();
///
/// Values agree with CostModel::evaluate to 1e-12 relative; memory is checked by CostModel::memory itself.
///
/// Objective `step` has no formula: its value is the lower bound (M-1) x bottleneck + sum. The bottleneck is the
/// largest time during which a lane is busy with one micro-batch (a forward, a backward, a transfer's bytes); the sum
/// is the time of one micro-batch alone. If that bound does not decide a move, the step itself is computed separately:
/// O(S M).
///
/// For S stages a move that touches k of them takes O(k + log S) to value, O(k log S) to apply, O(S) where it changes
/// the number of stages. Allocates only when the number of stages grows. Looks up no path without communication.
class PlacementCosts {
 public:
  /// Keeps references to the cost model.
  PlacementCosts(const CostModel& cost, const Goal& goal);

  /// Sets the placement: every layer in order, on distinct devices. O(stages + devices).
  void assign(const std::vector<StagePlacement>& stages);

  const std::vector<StagePlacement>& placement() const { return stages_; }
  std::size_t size() const { return stages_.size(); }
  const StagePlacement& stage(std::size_t i) const { return stages_[i]; }
  std::size_t layers_of(std::size_t i) const { return stages_[i].last_layer - stages_[i].first_layer + 1; }
  /// Devices without a stage, in no particular order.
  const std::vector<std::size_t>& unused_devices() const { return unused_; }
  /// Sets the threshold of Value::above_threshold (initially infinite). O(stages).
  void set_threshold(double threshold);
  /// A stage of largest cost.
  std::size_t bottleneck_stage() const;

  struct Value {
    double objective = 0;
    double bottleneck = 0;
    double sum = 0;
    /// Sum of the costs of stages above the threshold. It changes with moves that leave the bottleneck as it is.
    double above_threshold = 0;
  };
  Value value() const { return value_of(tree_[1], input_cost_); }
  /// With objective `step`: the step in seconds by its recurrence (StepClock). O(S M).
  double step_time() { return clock_.step_time(input_, terms_); }
  bool fits() const { return overfull_ == 0; }
  /// Bytes above the devices' memory, summed over all stages. O(stages).
  double excess() const;

  // --- proposals: false, and nothing proposed, for an invalid move ----------------------------------------------

  /// Moves the first layer of `stage` (not the first stage) by `layers`; both stages keep at least one.
  bool shift_boundary(std::size_t stage, std::ptrdiff_t layers) { return shift_boundaries(stage, stage, layers); }
  /// Moves the first layers of stages `from`..`to` by `layers`: stage from-1 grows and stage `to` shrinks.
  bool shift_boundaries(std::size_t from, std::size_t to, std::ptrdiff_t layers);
  /// Swaps the devices of two stages, which keep their layers.
  bool swap_devices(std::size_t a, std::size_t b);
  /// Exchanges two stages; each device keeps its number of layers.
  bool exchange_stages(std::size_t a, std::size_t b);
  /// Moves stage `from` to position `to` with its number of layers; the stages between move over.
  bool move_stage(std::size_t from, std::size_t to);
  /// Reverses the order of stages `from`..`to`; each device keeps its number of layers.
  bool reverse_stages(std::size_t from, std::size_t to);
  /// Moves the stage to an unused device.
  bool replace_device(std::size_t stage, std::size_t device);
  /// Gives the first or the last `layers` layers of the stage to an unused device.
  bool split_stage(std::size_t stage, std::size_t device, std::size_t layers, bool takes_first);
  /// Removes the stage; its first `to_before` layers go to the stage before it, the others to the next.
  bool drop_stage(std::size_t stage, std::size_t to_before);
  /// Removes the stage as drop_stage() does and lets its device split stage `other`, which is not a neighbour, as
  /// split_stage() does.
  bool move_device(std::size_t stage, std::size_t to_before, std::size_t other, std::size_t layers, bool takes_first);

  // --- of the placement after the proposed move ------------------------------------------------------------------

  Value value_after();
  double step_time_after();
  bool fits_after();
  double excess_after() const;
  /// Writes the stages to `stages`. O(stages).
  void placement_after(std::vector<StagePlacement>& stages) const;

  /// Makes the proposed move.
  void apply();

 private:
  /// Stages begin..end-1 are replaced by `count` stages from scratch_[first].
  struct Window {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t first = 0;
    std::size_t count = 0;
  };
  /// Contribution of a stage to the largest and to the sum; they differ only for objective `step`.
  struct StageCost {
    double largest = 0;
    double sum = 0;
  };
  /// Values of a range of stages.
  struct Node {
    double max = 0;
    double sum = 0;
    double excess = 0;  // above the threshold, of each cost
  };
  /// Costs of the stages that a window changes, including its neighbours.
  struct Changed {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t first = 0;  // in new_costs_
    std::size_t count = 0;
  };

  /// Mark in place_in_unused_ of a device with a stage.
  static constexpr std::size_t used = std::numeric_limits<std::size_t>::max();

  static Node join(const Node& a, const Node& b)
  {
    return {std::max(a.max, b.max), a.sum + b.sum, a.excess + b.excess};
  }
  Node node_of(StageCost cost) const;
  Value value_of(const Node& all, StageCost input_cost) const;
  /// Appends the stage to new_costs_ and, for objective `step`, to new_terms_.
  void add_costs(const StagePlacement& stage, const StagePlacement* before, const StagePlacement* next);
  double cost_of(const StagePlacement& stage, const StagePlacement* before, const StagePlacement* next);
  StepTerms terms_of(const StagePlacement& stage, const StagePlacement* next);
  StageCost input_cost_of(TransferTimes input) const;
  void splice_terms();
  std::uint64_t in_flight(std::size_t stages_after) const;
  double excess_of(const StagePlacement& stage, std::size_t stages_after) const;
  bool fits(const StagePlacement& stage, std::size_t stages_after) const;

  void begin_proposal();
  /// Windows are opened in the order of the chain.
  void open_window(std::size_t begin, std::size_t end);
  void put(std::size_t device, std::size_t first, std::size_t count);
  void put_split(std::size_t stage, std::size_t device, std::size_t layers, bool takes_first);
  void put_dropped(std::size_t stage, std::size_t to_before);
  bool can_split(std::size_t stage, std::size_t layers) const;
  bool can_drop(std::size_t stage, std::size_t to_before) const;
  std::ptrdiff_t growth() const;
  /// Calls visit(stage) for the stages after the move, in order.
  template <typename Visit>
  void for_each_after(Visit visit) const
  {
    std::size_t next = 0;
    for (std::size_t w = 0; w < window_count_; ++w) {
      const Window& window = windows_[w];
      for (; next < window.begin; ++next) visit(stages_[next]);
      for (std::size_t k = 0; k < window.count; ++k) visit(scratch_[window.first + k]);
      next = window.end;
    }
    for (; next < size(); ++next) visit(stages_[next]);
  }

  void compute_changed();
  double rest_max() const;
  double max_in(std::size_t begin, std::size_t end) const;
  void build_tree();
  void update_leaf(std::size_t stage, StageCost cost);
  void count_overfull();
  bool is_used(std::size_t device) const { return place_in_unused_[device] == used; }
  void mark_used(std::size_t device);
  void mark_unused(std::size_t device);

  const CostModel* cost_;
  Goal goal_;
  ChainSchedule schedule_;
  std::size_t devices_;
  bool schedule_matters_;                 // memory depends on the number of stages after a stage
  std::vector<double> work_;              // prefix sums, FLOP
  std::vector<double> seconds_per_flop_;  // by device
  bool has_kinds_;                        // several kinds of work; where not, no search pays for them
  std::vector<std::size_t> row_;          // of work_, by device
  std::vector<double> output_;            // bytes over the cut before each layer
  std::vector<double> gradient_;          // and back
  std::vector<TransferTimes> inputs_;     // from the data server, by device
  bool is_step_;
  StepClock clock_;
  std::optional<PathTable> paths_;

  std::vector<StagePlacement> stages_;
  std::vector<StagePlacement> next_stages_;
  std::vector<Node> tree_;  // leaves from leaves_ on
  std::size_t leaves_ = 1;
  StageCost input_cost_;
  TransferTimes input_;
  std::vector<StepTerms> terms_;  // of each stage, for objective `step`
  double threshold_ = std::numeric_limits<double>::infinity();
  std::size_t overfull_ = 0;
  std::vector<std::size_t> unused_;
  std::vector<std::size_t> place_in_unused_;  // of each device; `used` if it has a stage

  std::array<Window, 2> windows_;
  std::size_t window_count_ = 0;
  std::vector<StagePlacement> scratch_;
  std::array<Changed, 2> changed_;
  std::vector<StageCost> new_costs_;
  std::vector<StepTerms> new_terms_;    // parallel to new_costs_
  std::vector<StepTerms> terms_after_;  // of all stages after the move
  StageCost new_input_cost_;
  TransferTimes new_input_;
  bool is_changed_known_ = false;
  bool are_terms_spliced_ = false;
  std::optional<bool> fits_after_;
};

}  // namespace isobar::allocators

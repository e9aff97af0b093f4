#pragma once

#include "allocators/exact/run_rooms.hpp"
#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace isobar::allocators {

/// The relaxation of `path` certificates (core/plan/certificate.hpp): the cheapest sequence of stages that cuts the
/// chain. It may use a device repeatedly, though not within a run; each use costs the device's multiplier.
///
/// Three kernels give the same numbers:
/// - window: a sliding-window minimum. For hereditary memory without transfers; for the step in one group also with
///   transfers. O(levels x kinds x layers).
/// - separable: serial transfers and no limit on costs. O(levels x layers x kinds x (window x rooms + groups)).
/// - coupled: all else. At worst O(levels x layers x kinds x window x (groups² + rooms)), of which bounds skip most.
///
/// The window is the number of layers that a stage can hold within limit and memory; the rooms are those of one group
/// (run_rooms.hpp).
class PathRelaxation {
 public:
  /// `check` is called regularly and may throw. Keeps references.
  PathRelaxation(const StageTables& tables, std::function<void()> check);

  const StageTables& tables() const { return *tables_; }

  /// Sets the most that a stage may cost in seconds; may be infinite. For the step, the limit holds for the turns of
  /// stages and of their lanes.
  void set_limit(double limit);
  double limit() const { return limit_; }
  /// For the step under 1f1b: stages with fewer than `slots` stages after them, and what crosses the cuts after these,
  /// count 1 + floor((M-1) / slots) times in the sum (docs/certificates.md). 0: they count once. `slots` is below
  /// levels(), or equal to it where no stage has more stages after it.
  void set_slots(std::size_t slots);

  /// Returns the least beta x (input + sum of s_i) + sum of multipliers; infinity when no sequence is within the limit.
  /// `multipliers` are by kind, each at least 0.
  double solve(const std::vector<double>& multipliers);

  /// Counts how often the sequence of the last solve() uses each kind. Requires that solve() found one.
  void count_uses(std::vector<std::uint32_t>& uses) const;

  /// For a search that builds placements from the end. Returns the least that its first stage so far and everything
  /// before it add: beta x their costs and the multipliers of the stages before.
  ///
  /// That stage begins at `cut` on `kind`, computes for `compute` seconds and sends activations for `sent` seconds.
  /// `stages` stages are placed, including this one. Stages in the same group directly before it have `room` left
  /// (run_rooms.hpp), at most room_beside(kind).
  double least_completion(std::size_t stages, std::size_t cut, std::size_t kind, double compute, double sent,
                          std::size_t room) const;
  double least_completion(std::size_t stages, std::size_t cut, std::size_t kind, double compute, double sent) const
  {
    return least_completion(stages, cut, kind, compute, sent, room_beside(kind));
  }
  const RunRooms& rooms() const { return rooms_; }
  std::size_t room_beside(std::size_t kind) const { return rooms_.all(tables_->group_of(kind)) - rooms_.step(kind); }

 private:
  enum class Kernel { Window, Separable, Coupled };
  struct Choice {
    std::uint32_t kind = 0;
    std::uint32_t first = 0;
    std::uint32_t group_before = 0;
  };
  /// The layers before `cut`: their last stage is in `group`, the stage after the cut in `next`. If these are the same,
  /// the run that ends at the cut has used no more than `room`.
  struct Front {
    std::size_t level;
    std::size_t cut;
    std::size_t group;
    std::size_t next;
    std::size_t room;
  };

  std::size_t row(std::size_t level, std::size_t cut) const { return level * (layers_ + 1) + cut; }
  /// The least of a front between two groups, by the group before; unused where both are the same.
  const double* entering(std::size_t level, std::size_t cut, std::size_t next) const
  {
    return &entering_[(row(level, cut) * groups_ + next) * groups_];
  }
  /// The least of a front within a group, by room; it never grows with the room.
  const double* staying(std::size_t level, std::size_t cut, std::size_t group) const
  {
    return &staying_[row(level, cut) * rooms_.states_in_all() + rooms_.offset(group)];
  }
  std::size_t level_before(std::size_t level) const { return tables_->level_of(level + 1); }
  bool within_limit(double turn) const { return turn <= most_; }
  /// Costs are unlimited where the limit holds for turns.
  bool may_cost(double cost) const { return cost <= most_cost_; }
  /// What a stage adds to the sum: its compute, its activations and its gradients.
  double weighted(std::size_t level, double compute, double sent, double back) const
  {
    if (!tables_->limits_turns()) return beta_ * tables_->stage_cost(compute, sent + back);
    return weight_[level] * (compute + sent) + weight_[level_before(level)] * back;
  }
  /// Seconds of transfers from a kind over a cut to each group, within the limit where that holds for turns.
  const double* outputs(std::size_t kind, std::size_t cut) const
  {
    return &outputs_[tables_->transfer_index(kind, cut)];
  }
  const double* gradients(std::size_t kind, std::size_t cut) const
  {
    return &gradients_[tables_->transfer_index(kind, cut)];
  }
  /// beta x the cost of the input plus the multiplier of the first stage; infinite beyond the limit.
  double begin_on(std::size_t kind) const
  {
    return within_limit(tables_->input_turn(kind)) ? multipliers_[kind] + beta_ * tables_->input_cost(kind)
                                                   : std::numeric_limits<double>::infinity();
  }
  std::uint32_t& furthest_first(std::size_t level, std::size_t cut, std::size_t kind)
  {
    return window_[row(level, cut) * tables_->kinds() + kind];
  }
  void tabulate_windows();
  void solve_windows(std::size_t level);
  void solve_separable(std::size_t level, std::size_t cut);
  template <Communication communication>
  void solve_coupled(std::size_t level, std::size_t cut);
  template <Communication communication>
  void extend_by(std::size_t level, std::size_t cut, std::size_t kind);
  void keep(std::size_t level, std::size_t cut, std::size_t kind, const double* leaving, double entered);
  void find_least_before(std::size_t level, std::size_t cut);
  void find_rises(std::size_t level, std::size_t cut);
  void solve_end();
  Choice last_stage_of(const Front& front) const;
  std::vector<Choice> choices() const;  // of the sequence found, last stage first
  /// Calls visit(first, compute) for each stage on `kind` that ends at `cut`, fits in memory and whose compute is
  /// within the limit; the longest first.
  template <typename Visit>
  void for_each_last_stage(std::size_t level, std::size_t cut, std::size_t kind, const Visit& visit) const
  {
    for (std::size_t first = window_[row(level, cut) * tables_->kinds() + kind]; first < cut; ++first) {
      if (tables_->fits(level, kind, first, cut)) visit(first, tables_->compute(kind, first, cut));
    }
  }
  template <typename Visit>
  void for_each_way_in(std::size_t level, std::size_t cut, std::size_t kind, std::size_t room,
                       const Visit& visit) const;

  const StageTables* tables_;
  std::function<void()> check_;
  std::size_t layers_;
  std::size_t groups_;
  RunRooms rooms_;
  Kernel kernel_ = Kernel::Coupled;
  double beta_;
  std::vector<double> weight_;  // of each level: beta, except for slots
  double limit_ = 0;
  double most_ = 0;       // the limit plus a margin for rounding
  double most_cost_ = 0;  // likewise where the limit holds for costs, else infinite
  std::vector<double> outputs_;
  std::vector<double> gradients_;
  std::vector<double> multipliers_;
  double best_ = 0;
  Choice last_stage_;
  /// The furthest beginning of a stage that ends at a cut; the cut itself when there is none. Exact for the window
  /// kernel, else a bound.
  std::vector<std::uint32_t> window_;  // [level][cut][kind]
  // Window kernel.
  std::vector<double> value_;         // [level][cut]
  std::vector<Choice> choice_;        // likewise
  std::vector<std::uint32_t> queue_;  // [kind][layers]
  // Separable and coupled kernels.
  std::vector<double> entering_;         // [level][cut][group after][group before]
  std::vector<double> staying_;          // [level][cut][group][room]
  std::vector<double> least_before_;     // [level][cut][kind after]: the least of entering and staying
  std::vector<std::uint32_t> previous_;  // [cut]: the previous cut of the same size; itself when there is none
  std::vector<std::uint8_t> rises_;      // [level][cut][group after]: all values at least those of `previous_`
  std::vector<double> least_gradient_;   // [kind][size]
  std::vector<double> leaving_;          // [group]: scratch
  struct Seen {
    std::uint32_t first;
    bool is_hidden;  // its compute is shorter than any of its transfers
  };
  std::vector<Seen> seen_;  // [size]: scratch
};

}  // namespace isobar::allocators

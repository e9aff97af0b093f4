#pragma once

#include "allocators/exact/run_rooms.hpp"
#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace isobar::allocators {

/// The relaxation behind `path` certificates (core/plan/certificate.hpp): the cheapest sequence of stages that cuts the
/// chain, where a device may be used again and again, though not within a run, and each use costs its multiplier.
///
/// Three kernels give the same numbers. Without transfers and where memory is hereditary, a sliding-window minimum:
/// O(levels x kinds x layers); for the step in one group also with transfers. With serial transfers and no limit on
/// costs, these are separable: O(levels x layers x kinds x (window x rooms + groups)). Else, at worst, O(levels x
/// layers x kinds x window x (groups² + rooms)), of which bounds skip most. Window is the number of layers that a stage
/// can hold within limit and memory, rooms those of one group (run_rooms.hpp).
class PathRelaxation {
 public:
  /// `check` is called now and then and may throw. Keeps references.
  PathRelaxation(const StageTables& tables, std::function<void()> check);

  const StageTables& tables() const { return *tables_; }

  /// Stages may cost at most `limit`, infinity included; for the step, their turns and those of their lanes may be as
  /// long.
  void set_limit(double limit);
  double limit() const { return limit_; }
  /// For the step under 1f1b, below levels() or, where no stage has more behind it, as many: the sum counts stages with
  /// fewer than `slots` behind them, and what crosses the cuts behind these, 1 + floor((M-1) / slots) times
  /// (docs/certificates.md). 0: as often as the rest.
  void set_slots(std::size_t slots);

  /// The least beta x (input + sum of s_i) + sum of multipliers; infinity when no sequence is within the limit.
  /// `multipliers` by kind, each at least 0.
  double solve(const std::vector<double>& multipliers);

  /// How often the sequence that solve() found uses each kind. Call only when it found one.
  void count_uses(std::vector<std::uint32_t>& uses) const;

  /// For a search that builds placements from the end. Its first stage so far begins at `cut` on `kind`, computes and
  /// sends (activations on) so long, and `stages` stages are placed, this one included. Returns the least that this
  /// stage and everything before it add: beta x their costs and the multipliers of the stages before. Those in the same
  /// group right before it find `room` there (run_rooms.hpp); room_beside(kind) is as much as there can be.
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
  /// The layers before `cut`: their last stage in `group`, the one behind the cut in `next`. Where these are the same,
  /// the run that ends at the cut has used no more than `room`.
  struct Front {
    std::size_t level;
    std::size_t cut;
    std::size_t group;
    std::size_t next;
    std::size_t room;
  };

  std::size_t row(std::size_t level, std::size_t cut) const { return level * (layers_ + 1) + cut; }
  /// The least of a front between two groups, by the group before; with no use for the one that stays.
  const double* entering(std::size_t level, std::size_t cut, std::size_t next) const
  {
    return &entering_[(row(level, cut) * groups_ + next) * groups_];
  }
  /// The least of a front within a group, by room; never more with more of it.
  const double* staying(std::size_t level, std::size_t cut, std::size_t group) const
  {
    return &staying_[row(level, cut) * rooms_.states_in_all() + rooms_.offset(group)];
  }
  std::size_t level_before(std::size_t level) const { return tables_->level_of(level + 1); }
  bool within_limit(double turn) const { return turn <= most_; }
  /// Where limits hold for turns, costs have none.
  bool may_cost(double cost) const { return cost <= most_cost_; }
  /// What a stage adds to the sum: its compute, what it sends on and what it sends back.
  double weighted(std::size_t level, double compute, double sent, double back) const
  {
    if (!tables_->limits_turns()) return beta_ * tables_->stage_cost(compute, sent + back);
    return weight_[level] * (compute + sent) + weight_[level_before(level)] * back;
  }
  /// What transfers from a kind over a cut take to each group, within the limit where that holds for turns.
  const double* outputs(std::size_t kind, std::size_t cut) const
  {
    return &outputs_[tables_->transfer_index(kind, cut)];
  }
  const double* gradients(std::size_t kind, std::size_t cut) const
  {
    return &gradients_[tables_->transfer_index(kind, cut)];
  }
  /// beta x what stands before the chain and the multiplier of the first stage; infinite beyond the limit.
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
  template <typename Visit>
  void for_each_last_stage(std::size_t level, std::size_t cut, std::size_t kind, const Visit& visit) const;
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
  std::vector<double> weight_;  // of each level: beta but for slots
  double limit_ = 0;
  double most_ = 0;       // the limit with room for rounding
  double most_cost_ = 0;  // the same where the limit holds for costs
  std::vector<double> outputs_;
  std::vector<double> gradients_;
  std::vector<double> multipliers_;
  double best_ = 0;
  Choice last_stage_;
  /// The furthest beginning that a stage that ends at a cut may have; the cut itself when there is none. Exact for the
  /// window kernel, else a bound.
  std::vector<std::uint32_t> window_;  // [level][cut][kind]
  // Window kernel.
  std::vector<double> value_;         // [level][cut]
  std::vector<Choice> choice_;        // likewise
  std::vector<std::uint32_t> queue_;  // [kind][layers]
  // The others.
  std::vector<double> entering_;         // [level][cut][group behind][group before]
  std::vector<double> staying_;          // [level][cut][group][room]
  std::vector<double> least_before_;     // [level][cut][kind behind]: the least of entering and staying
  std::vector<std::uint32_t> previous_;  // [cut]: the cut before it of the same size; itself when there is none
  std::vector<std::uint8_t> rises_;      // [level][cut][group behind]: all of it at least what `previous_` has
  std::vector<double> least_gradient_;   // [kind][size]
  std::vector<double> leaving_;          // [group]: scratch
  struct Seen {
    std::uint32_t first;
    bool is_hidden;  // its compute, behind any of its transfers
  };
  std::vector<Seen> seen_;  // [size]: scratch
};

}  // namespace isobar::allocators

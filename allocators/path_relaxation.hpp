#pragma once

#include "allocators/stage_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace isobar::allocators {

/// The relaxation behind `path` certificates (core/certificate.hpp): the cheapest sequence of stages that cuts the
/// chain, where a device may be used again and again and each use costs its multiplier.
///
/// Three kernels give the same numbers. Without transfers and where memory is hereditary, a sliding-window minimum:
/// O(levels x kinds x layers). With serial transfers and no limit, costs are separable:
/// O(levels x layers x (kinds x (window + groups) + groups²)). Else O(levels x layers x kinds x window x groups²);
/// window is the number of layers that a stage can hold within limit and memory.
class PathRelaxation {
 public:
  /// `check` is called now and then and may throw. Keeps references.
  PathRelaxation(const StageTables& tables, const std::function<void()>& check);

  const StageTables& tables() const { return *tables_; }

  /// Stages may cost at most `limit`, infinity included.
  void set_limit(double limit);
  double limit() const { return limit_; }

  /// The least beta x (input + sum of s_i) + sum of multipliers; infinity when no sequence is within the limit.
  /// `multipliers` by kind, each at least 0.
  double solve(const std::vector<double>& multipliers);

  /// How often the sequence that solve() found uses each kind. Call only when it found one.
  void count_uses(std::vector<std::uint32_t>& uses) const;

  /// For a search that builds placements from the end. Its first stage so far begins at `cut` on `kind`, computes and
  /// sends (activations on) so long, and `stages` stages are placed, this one included. Returns the least that this
  /// stage and everything before it add: beta x their costs and the multipliers of the stages before.
  double least_completion(std::size_t stages, std::size_t cut, std::size_t kind, double compute, double sent) const;

 private:
  enum class Kernel { Window, Separable, Coupled };
  struct Choice {
    std::uint32_t kind = 0;
    std::uint32_t first = 0;
    std::uint32_t group_before = 0;
  };

  std::size_t state(std::size_t level, std::size_t cut, std::size_t group, std::size_t next) const
  {
    return ((level * (layers_ + 1) + cut) * groups_ + group) * nexts_ + next;
  }
  std::size_t level_before(std::size_t level) const { return tables_->level_of(level + 1); }
  bool within_limit(double cost) const { return cost <= limit_ * (1 + 1e-12); }
  void tabulate_windows();
  void solve_windows(std::size_t level);
  void solve_separable(std::size_t level);
  void find_ways_in(std::size_t level, std::size_t cut);
  void solve_coupled(std::size_t level, std::size_t cut);
  void solve_end();
  std::uint32_t group_before_of(std::size_t stages, std::size_t cut, std::size_t kind, double compute,
                                double sent) const;
  std::vector<Choice> choices() const;  // of the sequence found, last stage first
  template <typename Visit>
  void for_each_last_stage(std::size_t level, std::size_t cut, const Visit& visit) const;

  const StageTables* tables_;
  std::function<void()> check_;
  std::size_t layers_;
  std::size_t groups_;
  std::size_t nexts_ = 1;  // groups of the next stage that a state tells apart
  Kernel kernel_ = Kernel::Coupled;
  double beta_;
  double limit_ = 0;
  std::vector<double> multipliers_;
  std::vector<double> value_;   // [level][cut][group of last stage][group of next stage]
  std::vector<Choice> choice_;  // likewise
  double best_ = 0;
  Choice last_stage_;
  // Window kernel: the furthest beginning of a stage that ends at a cut; the cut itself when there is none.
  std::vector<std::uint32_t> window_;  // [level][cut][kind]
  std::vector<std::uint32_t> queue_;   // [kind][layers]
  // Separable kernel: the least to reach a stage of a kind at a cut, with both transfers over the cut.
  std::vector<double> way_in_;               // [level][cut][kind]
  std::vector<std::uint32_t> way_in_group_;  // likewise
  std::vector<double> least_output_;         // [size][to group][from group]
};

}  // namespace isobar::allocators

#pragma once

#include "allocators/exact/path_relaxation.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// Multipliers of the relaxation "each device once", by kind, made better step by step.
class Multipliers {
 public:
  explicit Multipliers(const StageTables& tables);

  /// What the multipliers prove at the relaxation's limit: a lower bound on beta x sum within it; infinity when they
  /// prove that no placement is within the limit.
  double proven() const { return proven_; }
  /// The multipliers that prove it, by kind; the relaxation has them when ascend() returns.
  const std::vector<double>& best() const { return best_; }

  /// Begins with these, by kind.
  void start_from(const std::vector<double>& multipliers) { best_ = multipliers; }

  /// Subgradient steps of Polyak's length towards `target` (a value worth reaching, such as an incumbent's sum); ends
  /// early when it is proven. Begins with the best multipliers of the call before, so that neighbouring limits are
  /// quick.
  void ascend(PathRelaxation& relaxation, double target, std::size_t steps);

  /// Multipliers of each device, in the order of the cluster.
  std::vector<double> by_device() const;

 private:
  double all_of(const std::vector<double>& multipliers) const;
  double value_of(double least, const std::vector<double>& multipliers) const;

  const StageTables* tables_;
  std::vector<double> best_;
  double proven_ = 0;
};

}  // namespace isobar::allocators

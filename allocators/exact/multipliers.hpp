#pragma once

#include "allocators/exact/path_relaxation.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// Multipliers of the relaxation of "each device once", by kind, improved step by step.
class Multipliers {
 public:
  explicit Multipliers(const StageTables& tables);

  /// What the multipliers prove at the relaxation's limit: a lower bound on beta x sum; infinity when no placement is
  /// within the limit.
  double proven() const { return proven_; }
  /// The multipliers of that proof, by kind; the relaxation is solved with them when ascend() returns.
  const std::vector<double>& best() const { return best_; }

  /// Sets the start of the next ascend(), by kind.
  void start_from(const std::vector<double>& multipliers) { best_ = multipliers; }

  /// Takes up to `steps` subgradient steps of Polyak's length towards `target` (such as an incumbent's sum); ends early
  /// when that is proven. Starts from the best multipliers of the previous call, so that neighbouring limits are quick.
  void ascend(PathRelaxation& relaxation, double target, std::size_t steps);

  /// The best multipliers of each device, in the order of the cluster.
  std::vector<double> by_device() const;

 private:
  double all_of(const std::vector<double>& multipliers) const;
  double value_of(double least, const std::vector<double>& multipliers) const;

  const StageTables* tables_;
  std::vector<double> best_;
  double proven_ = 0;
};

}  // namespace isobar::allocators

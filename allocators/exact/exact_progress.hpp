#pragma once

#include "allocators/allocator.hpp"
#include "allocators/exact/label_search.hpp"
#include "allocators/search_clock.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace isobar::allocators {

/// The widest beam of labels that a search tries.
inline constexpr std::size_t widest_beam = 1'000'000;

/// State of a search of `exact`: the best placement, the proven bound with its certificate, and what is left of the
/// limits. Not for objective `step`, whose search is in exact_step.hpp.
class ExactProgress {
 public:
  /// Starts from the fractional bound; infinite where that proves that nothing fits.
  explicit ExactProgress(const Problem& problem);
  ExactProgress(const ExactProgress&) = delete;
  ExactProgress& operator=(const ExactProgress&) = delete;

  const Problem& problem() const { return problem_; }
  const SearchClock& clock() const { return clock_; }

  /// The best placement so far; its costs are infinite before the first one.
  const FoundPlacement& best() const { return best_; }
  /// The proven bound in seconds; infinite when no placement exists.
  double bound() const { return bound_; }
  /// Of kind None while only the fractional bound is known.
  const Certificate& certificate() const { return certificate_; }
  bool is_proven() const { return bound_ >= best_.objective * (1 - 1e-9); }

  /// Keeps the placement if it fits in memory and is better than the best one; returns whether it did.
  bool offer(const std::vector<StagePlacement>& stages);
  /// Keeps the bound when it is higher than the proven one.
  void prove(double bound, Certificate certificate);
  void prove_infeasible();

  /// Runs local search from the best placement; `share`: fraction of the work of allocator local-search.
  void polish(double share);
  /// Takes a unit of the budget. @throws OutOfLimits when none is left.
  void spend();
  /// Checks the limits. With a time limit and communication, local search gets its turns here: a third of the time.
  /// @throws OutOfLimits
  void check();
  /// check() as a function, for the parts of a search.
  const std::function<void()>& check_function() const { return check_; }

  void count_labels(std::size_t labels) { labels_ += labels; }
  /// True when a search without limits has kept as many labels as it may by default, which takes some seconds.
  bool is_exhausted() const;

 private:
  const Problem problem_;
  const CostModel& cost_;
  SearchClock clock_;
  std::function<void()> check_;
  FoundPlacement best_;
  double bound_;
  Certificate certificate_;
  Seconds next_walk_{0.2};  // on the clock
  std::size_t labels_ = 0;  // kept so far
};

}  // namespace isobar::allocators

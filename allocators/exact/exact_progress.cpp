#include "allocators/exact/exact_progress.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/chain/local_search.hpp"
#include "allocators/memory_fit.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_labels_by_default = 300'000;

/// Adds a budget where there are no limits: some ten seconds at 64 devices.
SearchLimits limits_of(const Problem& problem)
{
  SearchLimits limits = problem.limits;
  const bool is_quick = problem.goal.communication == Communication::None || problem.cost.devices() <= 20;
  if (!limits.budget && !limits.time_limit) limits.budget = is_quick ? 2'000 : 15;
  return limits;
}

}  // namespace

ExactProgress::ExactProgress(const Problem& problem)
    : problem_(problem),
      cost_(problem.cost),
      clock_(limits_of(problem)),
      check_([this] { check(); }),
      best_{{}, infinity, infinity, infinity},
      bound_(objective_bound(cost_, problem.goal).value.value)
{
}

bool ExactProgress::offer(const std::vector<StagePlacement>& stages)
{
  if (stages.empty() || overfull_stage(cost_, problem_.goal, stages)) return false;
  const auto evaluation = cost_.evaluate(stages, problem_.goal);
  if (evaluation.objective.value >= best_.objective) return false;
  best_ = {stages, evaluation.objective.value, evaluation.bottleneck.value, evaluation.sum.value};
  return true;
}

void ExactProgress::prove(double bound, Certificate certificate)
{
  if (bound <= bound_ && certificate_.kind != CertificateKind::None) return;
  if (bound < bound_) return;
  bound_ = bound;
  certificate_ = std::move(certificate);
}

void ExactProgress::prove_infeasible()
{
  bound_ = infinity;
}

void ExactProgress::polish(double share)
{
  if (best_.stages.empty() || is_proven()) return;
  const auto moves = static_cast<std::uint64_t>(
      share * 256 * std::clamp(static_cast<double>(cost_.layers() * cost_.devices()), 64.0, 62'500.0));
  offer(improve(cost_, problem_.goal, best_.stages, clock_, problem_.limits.seed, Seconds(bound_), moves));
  check_();
}

void ExactProgress::spend()
{
  clock_.spend_or_leave();
  check_();
}

void ExactProgress::check()
{
  clock_.leave_if_over();
  if (best_.stages.empty() || !clock_.left() || problem_.goal.communication == Communication::None) return;
  if (clock_.elapsed() < next_walk_) return;
  SearchClock clock({.budget = {}, .time_limit = std::min(clock_.elapsed() / 2, *clock_.left())});
  offer(improve(cost_, problem_.goal, best_.stages, clock, problem_.limits.seed, Seconds(bound_), 1ULL << 40));
  next_walk_ = clock_.elapsed() * (5.0 / 3);  // twice the walk from now
}

bool ExactProgress::is_exhausted() const
{
  return !problem_.limits.budget && !problem_.limits.time_limit && labels_ > most_labels_by_default;
}

}  // namespace isobar::allocators

#include "allocators/exact/exact.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/chain/start_placements.hpp"
#include "allocators/exact/bottleneck_search.hpp"
#include "allocators/exact/exact_progress.hpp"
#include "allocators/exact/exact_step.hpp"
#include "allocators/exact/phase_flow.hpp"
#include "allocators/exact/stage_tables.hpp"
#include "allocators/exact/sum_search.hpp"
#include "allocators/search_clock.hpp"

#include <algorithm>
#include <optional>

namespace isobar::allocators {
namespace {

constexpr std::size_t most_groups = 12;

std::optional<Repetition> repetition_for(const StageTables& tables)
{
  return tables.is_hereditary() ? repetition_of(tables.cost()) : std::nullopt;
}

void bound_only(ExactProgress& progress)
{
  const Problem& problem = progress.problem();
  const StageTables tables(problem.cost, problem.goal, most_groups, progress.check_function());
  if (tables.weights().beta == 0) {
    BottleneckSearch(progress, tables, repetition_for(tables)).bound();
  } else {
    SumSearch(progress, tables, repetition_for(tables)).bound();
  }
}

void search(ExactProgress& progress)
{
  const Problem& problem = progress.problem();
  const StageTables tables(problem.cost, problem.goal, most_groups, progress.check_function());
  progress.offer(best_start(problem, progress.clock()));
  if (problem.goal.communication != Communication::None) {
    const Bound free = bound_without_transfers(problem.cost, problem.goal, progress.best().stages);
    if (free.certificate.kind == CertificateKind::Path) progress.prove(free.value.value, free.certificate);
  }
  if (tables.weights().beta == 0) {
    BottleneckSearch(progress, tables, repetition_for(tables)).search();
  } else {
    SumSearch(progress, tables, repetition_for(tables)).search();
  }
}

Placement answer_of(const ExactProgress& progress, bool is_out_of_limits)
{
  const FoundPlacement& best = progress.best();
  Placement placement;
  placement.stages = best.stages;
  if (progress.certificate().kind != CertificateKind::None) {
    placement.objective_bound = Seconds(std::min(progress.bound(), best.objective));
    placement.certificate = progress.certificate();
  }
  if (!best.stages.empty()) {
    placement.outcome = is_out_of_limits && !progress.is_proven() ? Outcome::TimedOut : Outcome::Feasible;
  } else if (progress.bound() == infinity) {
    placement.outcome = Outcome::Infeasible;
    placement.reason = why_none_fits(progress.problem(), progress.clock());
  } else {
    placement.outcome = Outcome::TimedOut;
    placement.reason = "no plan was found within the limits; raise --time-limit or --budget";
  }
  return placement;
}

}  // namespace

Bound bound_without_transfers(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known)
{
  Goal free = goal;
  free.communication = Communication::None;
  ExactProgress progress({cost, free, {}});
  progress.offer(known);
  try {
    if (progress.bound() < progress.best().objective) bound_only(progress);
  } catch (const OutOfLimits&) {
    // What was proven before the search was stopped holds.
  }
  if (progress.certificate().kind == CertificateKind::None) return objective_bound(cost, free);
  return {Seconds(progress.bound()), progress.certificate()};
}

Placement place_exactly(const Problem& problem)
{
  if (problem.goal.objective == Objective::Step) return place_step_exactly(problem);
  ExactProgress progress(problem);
  bool is_out_of_limits = false;
  try {
    if (progress.bound() < infinity) search(progress);
  } catch (const OutOfLimits&) {
    is_out_of_limits = problem.limits.budget || problem.limits.time_limit || interrupted();
  }
  return answer_of(progress, is_out_of_limits);
}

}  // namespace isobar::allocators

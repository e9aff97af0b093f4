#include "allocators/exact/bottleneck_search.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/exact/label_search.hpp"
#include "allocators/exact/ladder.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_states = 4'096'000;

Certificate at_limit(CertificateKind kind, double limit, const StageTables& tables, std::vector<double> multipliers)
{
  Certificate certificate;
  certificate.kind = kind;
  if (kind != CertificateKind::PhaseFlow) {
    certificate.groups = tables.groups_of_devices();
    certificate.levels = tables.levels();
  }
  certificate.rungs.push_back({Seconds(limit), std::move(multipliers)});
  return certificate;
}

std::size_t steps_of(const StageTables& tables)
{
  return tables.is_hereditary() ? 150 : 40;
}

}  // namespace

BottleneckSearch::BottleneckSearch(ExactProgress& progress, const StageTables& tables,
                                   const std::optional<Repetition>& repetition)
    : progress_(progress),
      tables_(tables),
      repetition_(repetition),
      check_(progress.check_function()),
      best_(progress.best())
{
}

void BottleneckSearch::bound()
{
  if (repetition_) {
    PhaseFlow flow(tables_, *repetition_, check_);
    if (!flow.is_small_enough()) return;
    const double refused = flow.largest_refused_limit(progress_.bound() * (1 - 1e-6), best_.objective);
    const double limit = std::min(refused, best_.objective * (1 - resolution));
    if (limit > progress_.bound()) prove_by_potentials(flow, limit);
    return;
  }
  PathRelaxation relaxation(tables_, check_);
  Multipliers multipliers(tables_);
  narrow(relaxation, multipliers, best_.objective, 1e-4, steps_of(tables_) / 3);
}

void BottleneckSearch::search()
{
  if (repetition_ && search_phases()) return;
  search_labels();
}

void BottleneckSearch::prove_by_potentials(const PhaseFlow& flow, double limit)
{
  progress_.prove(limit, at_limit(CertificateKind::Path, limit, tables_, tables_.by_device(flow.multipliers())));
}

void BottleneckSearch::prove_by_multipliers(const Multipliers& multipliers, double limit)
{
  progress_.prove(limit, at_limit(CertificateKind::Path, limit, tables_, multipliers.by_device()));
}

/// Halves the interval between refused limits and `open` until it is narrow; proves what is refused.
void BottleneckSearch::narrow(PathRelaxation& relaxation, Multipliers& multipliers, double open, double width,
                              std::size_t steps)
{
  double refused = progress_.bound() * (1 - 1e-6);
  while (open - refused > width * open) {
    progress_.spend();
    const double limit = (refused + open) / 2;
    relaxation.set_limit(limit);
    multipliers.ascend(relaxation, infinity, steps);
    if (multipliers.proven() == infinity) {
      refused = limit;
      prove_by_multipliers(multipliers, limit);
    } else {
      open = limit;
    }
  }
}

/// For a repeating chain without transfers. False when the states do not fit.
bool BottleneckSearch::search_phases()
{
  PhaseFlow flow(tables_, *repetition_, check_);
  if (!flow.is_small_enough()) return false;
  double refused = flow.largest_refused_limit(progress_.bound() * (1 - 1e-6), best_.objective);
  if (refused > progress_.bound()) prove_by_potentials(flow, refused);
  // Just above the refused limit solutions have little to lose and states are few: climb from there.
  double stride = 1e-5 * refused;
  while (flow.next_limit(refused) < best_.objective * (1 - 1e-12)) {
    const double next = flow.next_limit(refused);
    if (next == infinity) {  // stages are as long as memory lets them be
      const bool is_infeasible = flow.solve(infinity, most_states).verdict == PhaseFlow::Verdict::Infeasible;
      if (is_infeasible) progress_.prove_infeasible();
      return is_infeasible;
    }
    double limit = std::min(refused + stride, best_.objective * (1 - resolution));
    limit = std::max({std::min(limit, (refused + best_.objective) / 2), next, refused * (1 + resolution)});
    progress_.spend();
    PhaseFlow::Answer answer;
    for (std::size_t states = 1000; states <= most_states; states *= 16) {
      answer = flow.solve(limit, states);
      if (answer.verdict != PhaseFlow::Verdict::Unknown) break;
    }
    if (answer.verdict == PhaseFlow::Verdict::Unknown) return false;
    if (answer.verdict == PhaseFlow::Verdict::Feasible) {
      progress_.offer(answer.stages);
      stride = (best_.objective - refused) / 2;
    } else {
      refused = limit;
      progress_.prove(refused, at_limit(CertificateKind::PhaseFlow, refused, tables_, {}));
      stride *= 2;
    }
  }
  const double limit = best_.objective * (1 - resolution);
  if (flow.potentials_refuse(limit)) {
    prove_by_potentials(flow, limit);
  } else if (limit > progress_.bound()) {
    progress_.prove(limit, at_limit(CertificateKind::PhaseFlow, limit, tables_, {}));
  }
  return true;
}

/// By multipliers and labels.
void BottleneckSearch::search_labels()
{
  progress_.polish(tables_.is_hereditary() ? 0.02 : 1);
  PathRelaxation relaxation(tables_, check_);
  Multipliers multipliers(tables_);
  const std::size_t steps = steps_of(tables_);
  double open = best_.objective;
  if (open == infinity) {  // find a limit that the multipliers do not refuse
    open = 4 * progress_.bound();
    for (int i = 0; i < 60; ++i, open *= 2) {
      relaxation.set_limit(open);
      multipliers.ascend(relaxation, infinity, steps);
      if (multipliers.proven() != infinity) break;
      prove_by_multipliers(multipliers, open);
    }
  }
  narrow(relaxation, multipliers, open, 2e-5, steps);
  enum class Found { Better, None, ProvenNone };
  const auto search_within = [&](double limit, std::size_t width) {
    progress_.spend();
    relaxation.set_limit(limit);
    multipliers.ascend(relaxation, infinity, steps / 2);
    if (multipliers.proven() == infinity) {
      if (limit < infinity) prove_by_multipliers(multipliers, limit);
      return Found::ProvenNone;
    }
    LabelSearch search(relaxation, multipliers.best(), check_);
    const auto found = search.run(infinity, 0, width);
    progress_.count_labels(found.labels);
    if (found.placement && progress_.offer(found.placement->stages)) return Found::Better;
    if (!found.is_exhaustive) return Found::None;
    if (limit < infinity) {
      progress_.prove(limit, at_limit(CertificateKind::Search, limit, tables_, multipliers.by_device()));
    }
    return Found::ProvenNone;
  };
  for (std::size_t width = 30; width <= widest_beam && !progress_.is_proven() && !progress_.is_exhausted();
       width *= 10) {
    // Search just below the best objective; where that succeeds, repeatedly halfway to the refused limit.
    while (!progress_.is_proven()) {
      const Found below = search_within(best_.objective * (1 - resolution), width);
      if (below == Found::ProvenNone && best_.objective == infinity) progress_.prove_infeasible();
      if (below != Found::Better) break;
      for (double failed = progress_.bound(); best_.objective - failed > 1e-4 * best_.objective;) {
        const double limit = (failed + best_.objective) / 2;
        if (search_within(limit, width) != Found::Better) failed = limit;
      }
    }
  }
}

}  // namespace isobar::allocators

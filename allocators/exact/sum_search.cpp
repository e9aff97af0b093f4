#include "allocators/exact/sum_search.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/exact/label_search.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr std::size_t finest = 10'000;  // rounds
constexpr std::size_t most_states_for_sums = 20'000;

}  // namespace

SumSearch::SumSearch(ExactProgress& progress, const StageTables& tables, const std::optional<Repetition>& repetition)
    : progress_(progress),
      tables_(tables),
      cost_(tables.cost()),
      check_(progress.check_function()),
      best_(progress.best()),
      alpha_(tables.weights().alpha),
      ladder_(alpha_),
      repeats_(repetition.has_value()),
      relaxation_(tables, check_)
{
  if (repetition) flow_.emplace(tables, *repetition, check_);
  if (flow_ && !flow_->is_small_enough()) flow_.reset();
}

void SumSearch::bound()
{
  begin(floor(), 0.5);
  refine(16);
  conclude();
}

void SumSearch::search()
{
  const auto lowest = floor();
  progress_.polish(repeats_ ? 0.05 : 1);
  begin(lowest, 2);
  conclude();
  const std::size_t last = ladder_.rungs().size() - 1;
  // With few devices the labels may run out at once.
  const bool is_small = cost_.devices() <= 10 || alpha_ == 0 || best_.objective == infinity;
  for (std::size_t width = 1000; is_small && progress_.bound() < infinity; width *= 10) {
    search_rung(last, width);
    conclude();
    if (best_.objective < infinity || width >= widest_beam || progress_.is_exhausted()) break;
  }
  if (best_.objective == infinity) return;
  for (double before = 0; alpha_ == 0 && !progress_.is_proven() && progress_.bound() > before * (1 + 1e-4);) {
    before = progress_.bound();
    price(ladder_.rungs()[last], 4);
    conclude();
  }
  refine(finest);
  for (std::size_t width = 300; width <= widest_beam && !progress_.is_proven() && !progress_.is_exhausted();
       width *= 4) {
    const double before = best_.objective;
    const auto order = ladder_.by_value();
    for (std::size_t i = 0; i < order.size() && i < 8 && !progress_.is_proven(); ++i) {
      if (flow_ && width <= most_states_for_sums) solve_flow(ladder_.rungs()[order[i]], width);
      search_rung(order[i], width);
      conclude();
    }
    if (best_.objective < before) progress_.polish(0.1);
    refine(finest);
    conclude();
  }
}

/// Starts the ladder with the rung of floor() and one rung for everything above it.
void SumSearch::begin(const std::optional<Ladder::Rung>& lowest, double effort)
{
  Ladder::Rung all;
  if (lowest) {
    ladder_.add(*lowest);
    all.from = lowest->limit;
  }
  price(all, effort);
  ladder_.add(all);
}

/// A limit below which no placement's largest cost lies, with multipliers that prove it for the sum. It comes from the
/// chain without transfers, whose stages cost no more.
std::optional<Ladder::Rung> SumSearch::floor()
{
  if (alpha_ == 0) return std::nullopt;
  Goal goal = progress_.problem().goal;
  goal.objective = Objective::Bottleneck;
  goal.communication = Communication::None;
  const StageTables tables(cost_, goal, 1, check_);
  Ladder::Rung rung;
  rung.sum = infinity;
  const double known = best_.bottleneck;
  const double least = objective_bound(cost_, goal).value.value * (1 - 1e-6);
  const auto repetition = repetition_of(cost_);
  std::vector<double> ratios;
  if (tables.is_hereditary() && repetition) {
    PhaseFlow flow(tables, *repetition, check_);
    if (!flow.is_small_enough()) return std::nullopt;
    rung.limit = flow.largest_refused_limit(least, known);
    ratios = flow.multipliers();
    const auto near = flow.solve(rung.limit * (1 + 1e-5), 16'000);
    if (near.verdict == PhaseFlow::Verdict::Feasible) progress_.offer(near.stages);
  } else {
    PathRelaxation relaxation(tables, check_);
    Multipliers multipliers(tables);
    double open = known == infinity ? 8 * least : known;
    rung.limit = 0;
    double refused = least;
    while (open - refused > 1e-4 * open) {
      const double limit = (refused + open) / 2;
      relaxation.set_limit(limit);
      multipliers.ascend(relaxation, infinity, tables.is_hereditary() ? 100 : 20);
      if (multipliers.proven() == infinity) {
        rung.limit = refused = limit;
        ratios = multipliers.best();
      } else {
        open = limit;
      }
    }
  }
  if (rung.limit == 0) return std::nullopt;
  // Ratios prove that nothing is within the limit; large enough they prove any sum.
  PathRelaxation relaxation(tables, check_);
  relaxation.set_limit(rung.limit);
  const double least_ratio = relaxation.solve(ratios);
  double all = 0;
  for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
    all += static_cast<double>(tables.devices_of(kind).size()) * ratios[kind];
  }
  const double excess = least_ratio == infinity ? all + 1 : least_ratio - all;
  if (excess <= 1e-9 * all) return std::nullopt;
  const double worth = std::isfinite(best_.objective) ? best_.objective : progress_.bound() * 1e4;
  for (double& ratio : ratios) ratio *= 2 * worth / excess;
  rung.multipliers = tables.by_device(ratios);
  return rung;
}

/// Finds the least sum within a rung's limit, as far as potentials or multipliers prove it.
void SumSearch::price(Ladder::Rung& rung, double effort)
{
  progress_.spend();
  if (flow_) {
    rung.sum = flow_->least_sum(rung.limit);
    rung.multipliers = tables_.by_device(flow_->multipliers());
    // Large multipliers cancel: what rounding may have added is not claimed.
    rung.sum -= 6e-12 * std::accumulate(rung.multipliers.begin(), rung.multipliers.end(), std::abs(rung.sum));
    return;
  }
  relaxation_.set_limit(rung.limit);
  Multipliers multipliers = nearest_multipliers_ ? *nearest_multipliers_ : Multipliers(tables_);
  const double target = std::isfinite(best_.objective) ? best_.objective - alpha_ * rung.from : infinity;
  multipliers.ascend(relaxation_, target, static_cast<std::size_t>(effort * (tables_.is_hereditary() ? 100 : 25)));
  nearest_multipliers_ = multipliers;
  if (!rung.multipliers.empty() && multipliers.proven() <= rung.sum) return;
  rung.sum = multipliers.proven();
  rung.multipliers = multipliers.by_device();
}

/// Spends more steps on one rung; what they prove holds for smaller limits too.
void SumSearch::price_well(std::size_t index)
{
  Ladder::Rung priced = ladder_.rungs()[index];
  priced.is_priced_well = true;
  price(priced, 6);
  ladder_.rungs()[index] = priced;
  for (Ladder::Rung& rung : ladder_.rungs()) {
    if (rung.limit > priced.limit || rung.sum >= priced.sum) continue;
    rung.sum = priced.sum;
    rung.multipliers = priced.multipliers;
  }
}

/// Cuts the weakest rung repeatedly, down to the finest width.
void SumSearch::refine(std::size_t most_rounds)
{
  for (std::size_t round = 0; alpha_ > 0 && !progress_.is_proven() && round < most_rounds; ++round) {
    const std::size_t weakest = ladder_.weakest();
    const Ladder::Rung rung = ladder_.rungs()[weakest];
    if (ladder_.value(rung) >= best_.objective * (1 - resolution)) break;
    if (!flow_ && !rung.is_priced_well && alpha_ * (rung.limit - rung.from) <= coarse_rung * best_.objective) {
      price_well(weakest);
      conclude();
      continue;
    }
    const double middle = (rung.from + rung.limit) / 2;
    double limit = (best_.objective - rung.sum) / alpha_;  // nothing above it is better
    if (!(limit < middle && limit > rung.from * (1 + 1e-9)) && rung.limit < infinity) {
      if (alpha_ * (rung.limit - rung.from) <= finest_rung * best_.objective) break;
      limit = middle;
    }
    Ladder::Rung lower = ladder_.split(weakest, limit);
    price(lower, 1);
    ladder_.add(lower);
    if (flow_ && most_rounds == finest && round % 3 == 0) solve_flow(lower, 300);
    conclude();
  }
}

void SumSearch::conclude()
{
  double bound = ladder_.bound();
  const bool is_searched = std::any_of(ladder_.rungs().begin(), ladder_.rungs().end(),
                                       [](const Ladder::Rung& rung) { return rung.is_searched; });
  if (bound == infinity && best_.objective == infinity) {
    progress_.prove_infeasible();
    return;
  }
  if (is_searched || bound >= best_.objective) bound = std::min(bound, best_.objective * (1 - resolution));
  if (bound > progress_.bound()) {
    progress_.prove(bound, ladder_.certificate(tables_.groups_of_devices(), tables_.levels()));
  }
}

void SumSearch::solve_flow(const Ladder::Rung& rung, std::size_t states)
{
  progress_.spend();
  if (alpha_ * rung.from + rung.sum >= best_.objective) return;
  progress_.offer(flow_->solve(rung.limit, states, best_.objective - alpha_ * rung.from).stages);
}

void SumSearch::search_rung(std::size_t index, std::size_t width)
{
  progress_.spend();
  Ladder::Rung& rung = ladder_.rungs()[index];
  if (ladder_.value(rung) >= best_.objective * (1 - resolution)) return;
  std::vector<double> multipliers(tables_.kinds());
  for (std::size_t i = 0; i < tables_.devices(); ++i) multipliers[tables_.kind_of(i)] = rung.multipliers[i];
  relaxation_.set_limit(rung.limit);
  relaxation_.solve(multipliers);
  LabelSearch search(relaxation_, multipliers, check_);
  const auto found = search.run(best_.objective * (1 - resolution), rung.from, width);
  progress_.count_labels(found.labels);
  if (found.placement) progress_.offer(found.placement->stages);
  if (found.is_exhaustive) rung.is_searched = true;
}

}  // namespace isobar::allocators

#include "allocators/exact/step_bound.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/memory_fit.hpp"

#include <algorithm>
#include <cmath>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_groups_of_devices = 12;
/// Up to this value of layers x devices², every place is a group: a pass takes a few ms.
constexpr std::size_t most_for_exact_places = 40'000;
constexpr std::size_t most_levels = 8;

std::size_t groups_for(const CostModel& cost)
{
  const bool is_small = cost.layers() * cost.devices() * cost.devices() <= most_for_exact_places;
  return is_small ? std::max(most_groups_of_devices, cost.devices()) : most_groups_of_devices;
}

}  // namespace

StepBound::StepBound(const CostModel& cost, const Goal& goal, std::function<void()> check)
    : cost_(cost),
      goal_(goal),
      check_(std::move(check)),
      tables_(std::make_unique<StageTables>(cost, goal, groups_for(cost), check_)),
      relaxation_(std::make_unique<PathRelaxation>(*tables_, check_)),
      ladder_(tables_->weights().alpha),
      step_(infinity),
      largest_compute_(infinity)
{
  const auto repetition = tables_->is_hereditary() ? repetition_of(cost) : std::nullopt;
  if (repetition && tables_->weights().alpha > 0) flow_.emplace(*tables_, *repetition, check_);
  if (flow_ && !flow_->is_small_enough()) flow_.reset();
}

void StepBound::set_incumbent(double step, double largest_compute)
{
  if (step >= step_) return;
  step_ = step;
  largest_compute_ = largest_compute;
}

/// A limit below which no placement's largest turn lies, with multipliers that prove it for the sum. It comes from the
/// compute of whole stages, of which turns are at least a known part.
std::optional<Ladder::Rung> StepBound::floor()
{
  if (tables_->weights().alpha == 0) return std::nullopt;
  const Goal goal{Objective::Bottleneck, Communication::None, goal_.schedule, goal_.microbatches};
  const StageTables tables(cost_, goal, 1, check_);
  PathRelaxation relaxation(tables, check_);
  Multipliers multipliers(tables);
  double refused = objective_bound(cost_, goal).value.value * (1 - 1e-6);
  double open = std::isfinite(largest_compute_) ? largest_compute_ : 8 * refused;
  double limit = 0;
  std::vector<double> ratios;
  while (open - refused > 1e-3 * open) {
    const double middle = (refused + open) / 2;
    relaxation.set_limit(middle);
    multipliers.ascend(relaxation, infinity, tables.is_hereditary() ? 60 : 20);
    if (multipliers.proven() == infinity) {
      limit = refused = middle;
      ratios = multipliers.best();
    } else {
      open = middle;
    }
  }
  if (limit == 0) return std::nullopt;
  // Ratios prove that nothing is within the limit; large enough they prove any sum.
  relaxation.set_limit(limit);
  const double least = relaxation.solve(ratios);
  double all = 0;
  for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
    all += static_cast<double>(tables.devices_of(kind).size()) * ratios[kind];
  }
  const double excess = least == infinity ? all + 1 : least - all;
  if (excess <= 1e-9 * all) return std::nullopt;
  const double worth = std::isfinite(step_) ? step_ : objective_bound(cost_, goal_).value.value * 1e4;
  for (double& ratio : ratios) ratio *= 2 * worth / excess;
  Ladder::Rung rung;
  rung.sum = infinity;
  rung.limit = limit * (turns_of_step(cost_, goal_) / tables_->weights().alpha) * (1 - 1e-12);
  rung.multipliers = tables.by_device(ratios);
  return rung;
}

void StepBound::begin(double effort)
{
  Ladder::Rung all;
  if (const auto lowest = floor()) {
    ladder_.add(*lowest);
    all.from = lowest->limit;
  }
  price(all, effort);
  ladder_.add(all);
  conclude();
}

bool StepBound::refine()
{
  if (bound_ >= step_ * (1 - resolution)) return false;
  return refine_on_level() || distinguish_levels();
}

/// Levels beyond those of memory multiply the time of a pass, so they come last. What is proven of rungs stays true.
bool StepBound::distinguish_levels()
{
  const bool have_levels = tables_->levels() > 1 || tables_->weights().alpha == 0;
  if (have_levels || tables_->schedule() != ChainSchedule::OneForwardOneBackward || step_ == infinity) return false;
  auto tables = std::make_unique<StageTables>(cost_, goal_, groups_for(cost_), check_, most_levels);
  if (tables->levels() == 1) return false;
  flow_.reset();
  relaxation_ = std::make_unique<PathRelaxation>(*tables, check_);
  tables_ = std::move(tables);
  nearest_.reset();
  for (Ladder::Rung& rung : ladder_.rungs()) rung.is_priced_well = false;
  return true;
}

bool StepBound::refine_on_level()
{
  const double alpha = tables_->weights().alpha;
  const std::size_t weakest = ladder_.weakest();
  const Ladder::Rung rung = ladder_.rungs()[weakest];
  if (alpha == 0) {
    const double before = bound_;
    price(ladder_.rungs()[weakest], 4);
    conclude();
    return bound_ > before * (1 + 1e-6);
  }
  if (step_ == infinity) return false;
  if (!rung.is_priced_well && alpha * (rung.limit - rung.from) <= coarse_rung * step_) {
    price_well(weakest);
    conclude();
    return true;
  }
  const double middle = (rung.from + rung.limit) / 2;
  double limit = rung.slots > 0 ? infinity : (step_ - rung.sum) / alpha;  // nothing above it is better
  if (!(limit < middle && limit > rung.from * (1 + 1e-9)) && rung.limit < infinity) {
    if (alpha * (rung.limit - rung.from) <= finest_rung * step_) return false;
    limit = middle;
  }
  Ladder::Rung lower = ladder_.split(weakest, limit);
  price(lower, 1);
  ladder_.add(lower);
  conclude();
  return true;
}

/// Finds the least sum within a rung's limit, as far as multipliers prove it.
void StepBound::price(Ladder::Rung& rung, double effort)
{
  relaxation_->set_slots(rung.slots);
  relaxation_->set_limit(rung.limit);
  Multipliers multipliers = nearest_ ? *nearest_ : Multipliers(*tables_);
  if (!rung.multipliers.empty()) {
    std::vector<double> by_kind(tables_->kinds());
    for (std::size_t i = 0; i < tables_->devices(); ++i) by_kind[tables_->kind_of(i)] = rung.multipliers[i];
    multipliers.start_from(by_kind);
  }
  const double counted = rung.slots > 0 ? 0 : tables_->weights().alpha * rung.from;
  const double target = std::isfinite(step_) ? step_ - counted : infinity;
  if (flow_) {
    // Its potentials are optimal multipliers where all stages are as far from the end as possible.
    flow_->least_sum(rung.limit);
    multipliers.start_from(flow_->multipliers());
    effort = 0.02;
  }
  multipliers.ascend(*relaxation_, target, static_cast<std::size_t>(effort * (tables_->is_hereditary() ? 100 : 25)));
  nearest_ = multipliers;
  if (!rung.multipliers.empty() && multipliers.proven() <= rung.sum) return;
  rung.sum = multipliers.proven();
  rung.multipliers = multipliers.by_device();
}

/// Prices the same limit by round trips: where few micro-batches are in flight, each batch of them waits for the
/// previous one.
void StepBound::price_with_slots(Ladder::Rung& rung)
{
  if (tables_->schedule() != ChainSchedule::OneForwardOneBackward || rung.slots > 0) return;
  const auto others = static_cast<std::size_t>(goal_.microbatches - 1);
  const std::size_t levels = tables_->levels();
  const bool is_last_exact = levels >= std::min(tables_->layers(), tables_->devices());
  const std::size_t slots = std::min(others, is_last_exact ? levels : levels - 1);
  if (slots == 0) return;
  Ladder::Rung by_slots = rung;
  by_slots.slots = slots;
  by_slots.sum = -infinity;
  const auto nearest = nearest_;
  price(by_slots, 6);
  if (ladder_.value(by_slots) > ladder_.value(rung)) {
    rung = by_slots;
  } else {
    nearest_ = nearest;
  }
}

void StepBound::price_well(std::size_t index)
{
  Ladder::Rung priced = ladder_.rungs()[index];
  priced.is_priced_well = true;
  price(priced, 6);
  if (ladder_.value(priced) < step_ * (1 - resolution)) price_with_slots(priced);
  ladder_.rungs()[index] = priced;
  // What holds within a limit holds within a smaller one.
  for (Ladder::Rung& rung : ladder_.rungs()) {
    if (rung.limit > priced.limit) continue;
    Ladder::Rung as_well = rung;
    as_well.sum = priced.sum;
    as_well.multipliers = priced.multipliers;
    as_well.slots = priced.slots;
    if (ladder_.value(as_well) > ladder_.value(rung)) rung = as_well;
  }
}

void StepBound::conclude()
{
  const double proven = std::min(ladder_.bound(), step_ * (1 - resolution));
  if (certificate_.kind != CertificateKind::None && proven <= bound_) return;
  bound_ = proven;
  certificate_ = ladder_.certificate(tables_->groups_of_devices(), tables_->levels());
}

Bound quick_step_bound(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known)
{
  StepBound bound(cost, goal, [] {});
  if (!known.empty() && !overfull_stage(cost, goal, known)) {
    const auto evaluation = cost.evaluate(known, goal);
    double largest = 0;
    for (const auto& [device, first, last] : known) {
      largest = std::max(largest, cost.compute_time(device, first, last).value);
    }
    bound.set_incumbent(evaluation.objective.value, largest);
  }
  bound.begin(0.5);
  for (int round = 0; round < 8 && bound.refine(); ++round) {
  }
  return {Seconds(bound.value()), bound.certificate()};
}

}  // namespace isobar::allocators

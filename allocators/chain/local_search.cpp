#include "allocators/chain/local_search.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/chain/annealing.hpp"
#include "allocators/chain/needed_devices.hpp"
#include "allocators/chain/placement_costs.hpp"
#include "allocators/chain/placement_moves.hpp"
#include "allocators/chain/start_placements.hpp"
#include "allocators/chain/step_search.hpp"
#include "allocators/memory_fit.hpp"
#include "core/costs/step_recurrence.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace isobar::allocators {

namespace {

/// Objectives closer than this (relative) count as equal: sums taken in different orders round differently.
constexpr double search_resolution = 1e-12;
// Tuned on sky64, geo_8cities and geo_12regions with 483 layers, as was the choice of annealing: late acceptance
// (histories of 200 and 5,000) was worse on three of nine problems and hardly better on one.
constexpr int cycles = 12;
constexpr std::array<double, 3> hot_temperatures = {1e-2, 1e-3, 1e-4};  // of the objective; one per cycle, in turn
constexpr double first_threshold = 0.05;                                // below the bottleneck, when a cycle begins
constexpr double last_threshold = 0.001;                                // and when it ends

// For objective `step`: the part of the limits that goes to the formula below it.
constexpr double formula_fraction = 0.1;
// For another objective with --polish: the part of a time limit that goes to the step, and how many moves of the
// objective's search one move of the step's search counts as.
constexpr double polish_time_fraction = 0.25;
constexpr std::uint64_t moves_per_polish_move = 16;

class LocalSearch {
 public:
  LocalSearch(const CostModel& cost, const Goal& goal, SearchClock& clock, std::uint64_t seed, Seconds bound,
              std::uint64_t budget)
      : goal_(goal), clock_(clock), random_(seed), bound_(bound.value), budget_(budget), costs_(cost, goal)
  {
  }

  std::vector<StagePlacement> run(const std::vector<StagePlacement>& start)
  {
    costs_.assign(start);
    if (!costs_.fits() && !repair()) return costs_.placement();
    best_ = costs_.placement();
    best_objective_ = costs_.value().objective;
    descend();
    const double begin = progress();
    for (int cycle = 0; cycle < cycles && !is_over(); ++cycle) {
      const double former = best_objective_;
      const auto end_of = [begin](int count) { return begin + (1 - begin) * count / cycles; };
      // Light weights, which follow the objective, alternate with heavy ones, which level out large stages.
      weight_ = bottleneck_weight() * (cycle / 3 % 2 == 0 ? 0.1 / static_cast<double>(best_.size()) : 1);
      anneal(end_of(cycle), end_of(cycle + 1), hot_temperatures[static_cast<std::size_t>(cycle) % 3]);
      costs_.assign(best_);
      if (best_objective_ < former) descend();
    }
    return std::move(best_);
  }

 private:
  double bottleneck_weight() const
  {
    if (goal_.objective == Objective::Sequential) return 0;
    return goal_.objective == Objective::Bottleneck ? 1 : static_cast<double>(goal_.microbatches - 1);
  }

  /// The objective plus a little for every stage that is near the largest.
  double energy(const PlacementCosts::Value& value) const { return value.objective + weight_ * value.above_threshold; }

  bool is_over()
  {
    is_over_ = is_over_ || spent_ >= budget_ || clock_.is_over() || best_objective_ <= bound_ * (1 + tolerance);
    return is_over_;
  }

  /// Counts a move; true when the search must end.
  bool spend()
  {
    ++spent_;
    return (spent_ % moves_between_looks == 0 || spent_ >= budget_) && is_over();
  }

  double progress() const
  {
    return std::max(static_cast<double>(spent_) / static_cast<double>(budget_), clock_.used_fraction());
  }

  void keep()
  {
    const double objective = costs_.value().objective;
    if (objective >= best_objective_ * (1 - search_resolution)) return;
    best_objective_ = objective;
    best_ = costs_.placement();
  }

  /// Reduces memory to what the devices have; false when half of the limits is not enough for that. Ends at the
  /// placement of least excess.
  bool repair()
  {
    const double end = progress() + (1 - progress()) / 2;
    double now = costs_.excess();
    double least = now;
    std::vector<StagePlacement> nearest = costs_.placement();
    while (now > 0 && !is_over() && progress() < end) {
      for (std::uint64_t k = 0; k < moves_between_looks && now > 0; ++k) {
        ++spent_;
        if (!propose_random_move(costs_, random_, random_.below(costs_.size()))) continue;
        const double after = costs_.excess_after();
        const double temperature = 0.01 * now;
        if (after > now && std::exp((now - after) / temperature) <= random_.uniform()) continue;
        costs_.apply();
        now = after;
        if (now >= least) continue;
        least = now;
        nearest = costs_.placement();
      }
    }
    costs_.assign(nearest);
    return costs_.fits();
  }

  /// Takes the proposed move if it lowers the objective, or keeps it and lowers the energy.
  bool take_if_better()
  {
    if (spend()) return false;
    const auto now = costs_.value();
    const auto after = costs_.value_after();
    const bool better = after.objective < now.objective * (1 - search_resolution) ||
                        (after.objective <= now.objective * (1 + search_resolution) &&
                         energy(after) < energy(now) * (1 - 10 * search_resolution));
    if (!better || !costs_.fits_after()) return false;
    costs_.apply();
    keep();
    return true;
  }

  /// Takes the first improvement over all neighbours, repeatedly until none is better.
  void descend()
  {
    weight_ = bottleneck_weight() / static_cast<double>(costs_.size());
    bool any = true;
    while (any && !is_over()) {
      costs_.set_threshold(costs_.value().bottleneck * (1 - first_threshold));
      any = descend_by_shifts() || descend_by_swaps() || descend_by_devices();
    }
  }

  bool descend_by_shifts()
  {
    constexpr std::size_t reach = 8;
    bool any = false;
    for (std::size_t stage = 1; stage < costs_.size(); ++stage) {
      for (std::size_t to = stage; to < std::min(stage + reach, costs_.size()); ++to) {
        for (const std::ptrdiff_t layers : {1, -1, 2, -2, 3, -3, 5, -5}) {
          while (!is_over_ && costs_.shift_boundaries(stage, to, layers) && take_if_better()) any = true;
        }
      }
    }
    return any;
  }

  bool descend_by_swaps()
  {
    constexpr std::size_t reach = 8;
    bool any = false;
    for (std::size_t a = 0; a < costs_.size(); ++a) {
      for (std::size_t b = a + 1; b < costs_.size() && !is_over_; ++b) {
        any = (costs_.swap_devices(a, b) && take_if_better()) || any;
        if (b > a + reach) continue;
        any = (costs_.exchange_stages(a, b) && take_if_better()) || any;
        any = (costs_.move_stage(a, b) && take_if_better()) || any;
        any = (costs_.move_stage(b, a) && take_if_better()) || any;
        any = (costs_.reverse_stages(a, b) && take_if_better()) || any;
      }
    }
    return any;
  }

  bool descend_by_devices()
  {
    bool any = false;
    for (std::size_t stage = 0; stage < costs_.size(); ++stage) {
      for (std::size_t k = 0; k < costs_.unused_devices().size() && !is_over_; ++k) {
        any = (costs_.replace_device(stage, costs_.unused_devices()[k]) && take_if_better()) || any;
        any = split_for(stage, costs_.unused_devices()[k]) || any;
      }
      for (std::size_t share = 0; share <= 4 && stage < costs_.size() && !is_over_; ++share) {
        any = (costs_.drop_stage(stage, costs_.layers_of(stage) * share / 4) && take_if_better()) || any;
      }
    }
    return any;
  }

  bool split_for(std::size_t stage, std::size_t device)
  {
    for (std::size_t share = 1; share <= 3; ++share) {
      const std::size_t layers = costs_.layers_of(stage) * share / 4;
      for (const bool takes_first : {true, false}) {
        if (costs_.split_stage(stage, device, layers, takes_first) && take_if_better()) return true;
      }
    }
    return false;
  }

  /// Cools down while progress() runs from `from` to `to`.
  void anneal(double from, double to, double hot)
  {
    const double unit = best_objective_;
    while (!is_over()) {
      const double part = (progress() - from) / (to - from);
      if (part >= 1) return;
      const double temperature = unit * hot * std::pow(cold_temperature / hot, part);
      const double below = first_threshold * std::pow(last_threshold / first_threshold, part);
      costs_.set_threshold(costs_.value().bottleneck * (1 - below));
      double now = energy(costs_.value());
      const std::uint64_t end = std::min(spent_ + moves_between_looks, budget_);
      while (spent_ < end) {
        ++spent_;
        const bool aimed = random_.uniform() < aimed_fraction;
        const std::size_t stage = aimed ? costs_.bottleneck_stage() : random_.below(costs_.size());
        if (!propose_random_move(costs_, random_, stage)) continue;
        const double after = energy(costs_.value_after());
        if (after > now && std::exp((now - after) / temperature) <= random_.uniform()) continue;
        if (!costs_.fits_after()) continue;
        costs_.apply();
        now = after;
        keep();
      }
    }
  }

  Goal goal_;
  SearchClock& clock_;
  FastRandom random_;
  double bound_;
  std::uint64_t budget_;
  std::uint64_t spent_ = 0;
  bool is_over_ = false;
  double weight_ = 0;  // of what is above the threshold
  PlacementCosts costs_;
  std::vector<StagePlacement> best_;
  double best_objective_ = std::numeric_limits<double>::infinity();
};

/// Number of moves when neither budget nor time is limited: 1 to 2 s for 64 devices and 483 layers.
std::uint64_t default_budget(const CostModel& cost, const Goal& goal)
{
  constexpr std::uint64_t least = 16'384;
  std::uint64_t most = 16'000'000;
  std::uint64_t per_choice = 256;
  if (goal.objective == Objective::Step) {
    constexpr std::uint64_t most_passes = 8'000'000'000;  // of micro-batches through stages
    most = std::clamp(most_passes / (std::min(cost.layers(), cost.devices()) * goal.microbatches), least, most);
    per_choice = 512;
  }
  return std::clamp(per_choice * cost.layers() * cost.devices(), least, most);
}

}  // namespace

std::vector<StagePlacement> improve(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& start,
                                    SearchClock& clock, std::uint64_t seed, Seconds bound, std::uint64_t budget,
                                    BestPlacements* kept)
{
  if (goal.objective != Objective::Step) return LocalSearch(cost, goal, clock, seed, bound, budget).run(start);
  // First by the formula below the step, which is quick to evaluate; then by the step.
  const bool fits = !overfull_stage(cost, goal, start);
  const double first_part = fits ? formula_fraction : 0.5;
  SearchLimits share;
  share.time_limit = clock.left();
  if (share.time_limit) *share.time_limit *= first_part;
  SearchClock formula_clock(share);
  const auto moves = static_cast<std::uint64_t>(first_part * static_cast<double>(budget));
  auto stages = LocalSearch(cost, goal, formula_clock, seed, Seconds(0), moves).run(start);
  if (overfull_stage(cost, goal, stages)) return stages;
  BestPlacements none(0);
  BestPlacements& placements = kept != nullptr ? *kept : none;
  if (fits) {
    const Seconds from = step_time_by_recurrence(cost, start, goal);
    placements.offer(start, from.value);
    if (from <= step_time_by_recurrence(cost, stages, goal)) stages = start;
  }
  return improve_step(cost, goal, std::move(stages), clock, seed, bound, budget - moves, placements);
}

namespace {

Placement place_by_moves(const Problem& problem)
{
  const auto& [cost, goal, limits] = problem;
  if (auto reason = oversized_layer(cost, goal)) return {.outcome = Outcome::Infeasible, .reason = std::move(*reason)};
  SearchClock clock(limits);
  constexpr std::uint64_t no_budget = std::uint64_t{1} << 62;
  const std::uint64_t budget = limits.budget.value_or(limits.time_limit ? no_budget : default_budget(cost, goal));
  const bool polishes = limits.polish && goal.objective != Objective::Step;

  std::vector<StagePlacement> stages = limits.start.empty() ? best_start(problem, clock) : limits.start;
  SearchLimits share;  // polishing takes the rest of the time
  share.time_limit = clock.left();
  if (share.time_limit && polishes) *share.time_limit *= 1 - polish_time_fraction;
  SearchClock search_clock(share);
  BestPlacements kept(goal.objective == Objective::Step ? limits.candidates : 0);
  stages = improve(cost, goal, stages, search_clock, limits.seed, objective_bound(cost, goal).value, budget, &kept);

  Placement placement;
  if (const auto overfull = overfull_stage(cost, goal, stages)) {
    placement.outcome = clock.is_over() ? Outcome::TimedOut : Outcome::Infeasible;
    placement.reason = "found no placement that fits; in the nearest one, " + *overfull;
    return placement;
  }
  if (polishes) {
    Goal step = goal;
    step.objective = Objective::Step;
    step.communication = Communication::Played;
    BestPlacements none(0);
    const std::uint64_t moves = budget == no_budget ? no_budget : budget / moves_per_polish_move;
    stages = improve_step(cost, step, std::move(stages), clock, limits.seed, Seconds(0), moves, none);
  }
  if (clock.is_over()) placement.outcome = Outcome::TimedOut;
  placement.alternatives = kept.without(stages);
  placement.stages = std::move(stages);
  return placement;
}

}  // namespace

Placement place_by_local_search(const Problem& problem)
{
  return place_on_needed_devices(problem, DeviceOrder::Any, place_by_moves);
}

}  // namespace isobar::allocators

#include "allocators/exact/exact_step.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/chain/local_search.hpp"
#include "allocators/chain/start_placements.hpp"
#include "allocators/exact/exact.hpp"
#include "allocators/exact/step_bound.hpp"
#include "allocators/exact/step_tree.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/search_clock.hpp"
#include "core/certificates/certificate_checker.hpp"

#include <algorithm>
#include <optional>

namespace isobar::allocators {

namespace {

/// The part of a time limit that goes to local search, and the part of that which comes before the proof.
constexpr double walking_fraction = 0.4;
constexpr double first_walk = 0.3;
/// Steps of a search, as the checker counts them, that count as one unit of a budget: at least this number, and more
/// where a pass over the cuts takes longer.
constexpr std::uint64_t least_steps_of_unit = 100'000'000;
constexpr std::uint64_t steps_by_pass = 500;
/// Half of what the checker takes.
constexpr std::uint64_t most_steps_of_search = most_certificate_steps / 2;
/// Budget without limits: what takes some ten seconds, in the same measure, within bounds.
constexpr std::uint64_t usual_passes = 80'000'000;
constexpr std::uint64_t least_usual_budget = 40;
constexpr std::uint64_t most_usual_budget = 600;
/// Least part of the gap between bound and best that is still searched.
constexpr double least_share = 0.05;

class ExactStep {
 public:
  explicit ExactStep(const Problem& problem)
      : problem_(problem),
        cost_(problem.cost),
        goal_(problem.goal),
        clock_(limits_of(problem)),
        check_([this] { clock_.leave_if_over(); }),
        least_(objective_bound(cost_, goal_).value.value),
        steps_of_unit_(std::max(least_steps_of_unit, steps_by_pass * pass(problem))),
        kept_(problem.limits.candidates)
  {
  }

  Placement place()
  {
    try {
      if (least_ < infinity) search();
    } catch (const OutOfLimits&) {
      is_over_ = problem_.limits.budget || problem_.limits.time_limit || interrupted();
    }
    return answer();
  }

 private:
  /// Rough cost of a pass over the cuts.
  static std::uint64_t pass(const Problem& problem)
  {
    const std::uint64_t pairs = problem.cost.layers() * problem.cost.devices();
    return problem.goal.has_free_transfers() ? pairs : pairs * problem.cost.devices();
  }
  static SearchLimits limits_of(const Problem& problem)
  {
    SearchLimits limits = problem.limits;
    if (limits.budget || limits.time_limit) return limits;
    limits.budget = std::clamp(usual_passes / pass(problem), least_usual_budget, most_usual_budget);
    return limits;
  }

  void spend()
  {
    clock_.spend_or_leave();
    check_();
  }

  void offer(const std::vector<StagePlacement>& stages)
  {
    if (stages.empty() || overfull_stage(cost_, goal_, stages)) return;
    const double step = cost_.evaluate(stages, goal_).objective.value;
    if (step >= best_step_) return;
    kept_.offer(stages, step);
    best_ = stages;
    best_step_ = step;
    if (bound_) bound_->set_incumbent(step, largest_compute());
  }

  double largest_compute() const
  {
    double largest = 0;
    for (const auto& [device, first, last] : best_) {
      largest = std::max(largest, cost_.compute_time(device, first, last).value);
    }
    return largest;
  }

  void search()
  {
    offer(best_start(problem_, clock_));
    if (best_.empty()) find_any();
    if (best_.empty()) return;
    walk(walking_fraction * first_walk);
    bound_.emplace(cost_, goal_, check_);
    bound_->set_incumbent(best_step_, largest_compute());
    spend();
    bound_->begin(2);
    if (!is_proven() && search_below(best_step_, 1)) return;
    bool is_refined = true;
    while (is_refined && !is_proven()) {
      spend();
      is_refined = bound_->refine();
      if (clock_.left() && clock_.used_fraction() > next_walk_ && next_walk_ < 1) {
        walk(walking_fraction * (1 - first_walk));
        next_walk_ = 1;
      }
    }
    search_and_walk();
    if (!is_proven() && clock_.left()) walk(1);
  }

  /// Searches for placements between the proven bound and the best one, nearer to the bound where that takes too long.
  /// Walks in between: as long as the search took or, without a time limit, while that finds better ones.
  void search_and_walk()
  {
    double share = 1;
    bool is_walk_worthwhile = true;
    for (std::uint64_t units = 2; !is_proven() && share >= least_share;) {
      const double begun = clock_.used_fraction();
      const double ceiling = share == 1 ? best_step_ : proven() + share * (best_step_ - proven());
      if (search_below(ceiling, units)) {
        share = std::min(1.0, 2 * share);
      } else {
        share /= 2;
        units = std::min(2 * units, most_steps_of_search / steps_of_unit_);
      }
      const double before = best_step_;
      if (!is_proven() && is_walk_worthwhile) walk(clock_.used_fraction() - begun);
      is_walk_worthwhile = clock_.left() || best_step_ < before;
      while (best_step_ < before && !is_proven() && bound_->refine()) spend();
    }
  }

  /// Finds any placement that fits, or proves that there is none; the step does not matter for that.
  void find_any()
  {
    Goal goal = goal_;
    goal.objective = Objective::Bottleneck;
    goal.communication = Communication::None;
    SearchLimits limits = problem_.limits;
    limits.time_limit = clock_.left();
    const Placement found = place_exactly({cost_, goal, limits});
    offer(found.stages);
    if (found.outcome == Outcome::Infeasible) least_ = infinity;
  }

  /// Runs local search from the best placement, for this part of a time limit, or for as many moves as local-search
  /// makes on its own.
  void walk(double part_of_time)
  {
    SearchLimits limits;
    if (clock_.left()) {
      limits.time_limit = std::min(*clock_.left(), (clock_.elapsed() + *clock_.left()) * part_of_time);
    }
    const double usual = 256 * std::clamp(static_cast<double>(cost_.layers() * cost_.devices()), 64.0, 62'500.0);
    const auto moves = clock_.left() ? std::uint64_t{1} << 40 : static_cast<std::uint64_t>(usual);
    SearchClock clock(limits);
    const Seconds bound(bound_ ? bound_->value() : least_);
    offer(improve(cost_, goal_, best_, clock, problem_.limits.seed + walks_, bound, moves, &kept_));
    ++walks_;
    check_();
  }

  /// Goes through all placements below `ceiling`, rung by rung. True when that ended, with the proof that there is none
  /// below the lesser of `ceiling` and the best.
  bool search_below(double ceiling, std::uint64_t units)
  {
    const StageTables& tables = bound_->tables();
    const Ladder& ladder = bound_->ladder();
    PathRelaxation relaxation(tables, check_);
    std::vector<double> multipliers(tables.kinds());
    std::uint64_t left = units * steps_of_unit_;
    for (std::uint64_t unit = 0; unit < units; ++unit) spend();
    for (const Ladder::Rung& rung : ladder.rungs()) {
      ceiling = std::min(ceiling, best_step_ * (1 - resolution));
      if (rung.slots == 0 && ladder.value(rung) >= ceiling) continue;
      for (std::size_t i = 0; i < tables.devices(); ++i) multipliers[tables.kind_of(i)] = rung.multipliers[i];
      relaxation.set_limit(rung.limit);
      relaxation.solve(multipliers);
      const auto found = StepTree(relaxation, multipliers, check_).run(ceiling, rung.from, left);
      offer(found.stages);
      if (!found.is_exhaustive) return false;
      left -= found.steps;
    }
    if (ceiling <= searched_bound_) return true;
    searched_bound_ = std::min(ceiling, best_step_ * (1 - resolution));
    searched_ = ladder.certificate(tables.groups_of_devices(), tables.levels());
    searched_.kind = CertificateKind::Search;
    for (Certificate::Rung& rung : searched_.rungs) rung.slots = 0;
    return true;
  }

  double proven() const { return std::max(bound_ ? bound_->value() : 0, searched_bound_); }
  bool is_proven() const { return proven() >= best_step_ * (1 - 1e-9); }

  Placement answer()
  {
    Placement placement;
    placement.stages = best_;
    placement.alternatives = kept_.without(best_);
    const bool is_searched = bound_ && searched_bound_ > bound_->value();
    if (is_searched || (bound_ && bound_->certificate().kind != CertificateKind::None)) {
      placement.objective_bound = Seconds(std::min(proven(), best_step_));
      placement.certificate = is_searched ? searched_ : bound_->certificate();
    }
    if (!best_.empty()) {
      placement.outcome = is_over_ && !is_proven() ? Outcome::TimedOut : Outcome::Feasible;
    } else if (least_ == infinity) {
      placement.outcome = Outcome::Infeasible;
      placement.reason = why_none_fits(problem_, clock_);
    } else {
      placement.outcome = Outcome::TimedOut;
      placement.reason = "no plan was found within the limits; raise --time-limit or --budget";
    }
    return placement;
  }

  const Problem problem_;
  const CostModel& cost_;
  Goal goal_;
  SearchClock clock_;
  std::function<void()> check_;
  double least_;  // no step is below it; infinite where nothing fits
  std::uint64_t steps_of_unit_;
  std::vector<StagePlacement> best_;
  double best_step_ = infinity;
  std::optional<StepBound> bound_;
  Certificate searched_;
  double searched_bound_ = 0;  // what searched_ proves
  double next_walk_ = 0.6;     // of the time
  std::uint64_t walks_ = 0;
  BestPlacements kept_;
  bool is_over_ = false;
};

}  // namespace

Placement place_step_exactly(const Problem& problem)
{
  return ExactStep(problem).place();
}

}  // namespace isobar::allocators

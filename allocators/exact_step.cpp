#include "allocators/exact_step.hpp"

#include "allocators/bounds.hpp"
#include "allocators/exact.hpp"
#include "allocators/local_search.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/start_placements.hpp"
#include "allocators/step_bound.hpp"
#include "allocators/step_tree.hpp"

#include <algorithm>
#include <limits>
#include <optional>

namespace isobar::allocators {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// Where a placement and its bound count as equal; a tenth of the checker's tolerance.
constexpr double resolution = 1e-10;
/// Of a time limit: how much goes to local search, and what part of that comes before the proof.
constexpr double walking_fraction = 0.4;
constexpr double first_walk = 0.3;
/// Suffixes that count as one unit of a budget.
constexpr std::uint64_t suffixes_per_unit = 100'000;
constexpr std::size_t most_devices_searched = 12;

struct OutOfLimits {};

class ExactStep {
 public:
  explicit ExactStep(const Problem& problem)
      : problem_(problem),
        cost_(problem.cost),
        goal_(problem.goal),
        clock_(limits_of(problem)),
        check_([this] { check(); }),
        least_(objective_bound(cost_, goal_).value.value),
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
  /// Without limits: what takes some ten seconds at 64 devices.
  static SearchLimits limits_of(const Problem& problem)
  {
    SearchLimits limits = problem.limits;
    const bool is_quick = problem.goal.communication == Communication::None || problem.cost.devices() <= 20;
    if (!limits.budget && !limits.time_limit) limits.budget = is_quick ? 600 : 40;
    return limits;
  }

  void check() const
  {
    if (clock_.is_over()) throw OutOfLimits{};
  }
  void spend()
  {
    if (!clock_.spend()) throw OutOfLimits{};
    check();
  }

  void offer(const std::vector<StagePlacement>& stages)
  {
    if (stages.empty() || overfull_stage(cost_, goal_, stages)) return;
    const double step = cost_.evaluate(stages, goal_).objective.value;
    if (step >= best_step_) return;
    kept_.offer(stages, step);
    best_ = stages;
    best_step_ = step;
    if (bound_) bound_->know(step, largest_compute());
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
    bound_->know(best_step_, largest_compute());
    spend();
    bound_->begin(2);
    const bool is_small = cost_.devices() <= most_devices_searched;
    if (is_small && !is_proven() && search_all(1)) return;
    bool is_refined = true;
    while (is_refined && !is_proven()) {
      spend();
      is_refined = bound_->refine();
      if (clock_.left() && clock_.used_fraction() > next_walk_ && next_walk_ < 1) {
        walk(walking_fraction * (1 - first_walk));
        next_walk_ = 1;
      }
    }
    for (std::uint64_t units = 4; !is_proven(); units *= 4) {
      const double before = best_step_;
      if (is_small && search_all(units)) return;
      spend();
      walk(walking_fraction);
      while (best_step_ < before && !is_proven() && bound_->refine()) spend();
      if (!is_small && best_step_ >= before && !clock_.left()) return;
    }
  }

  /// Any placement that fits, or the proof that there is none: to hold the chain asks nothing of the step.
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

  /// Moves from the best placement, for this part of a time limit or as many as local-search makes by itself.
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
    check();
  }

  /// Goes through all placements that may be better; true when that came to an end, with the proof.
  bool search_all(std::uint64_t units)
  {
    const StageTables& tables = bound_->tables();
    PathRelaxation relaxation(tables, check_);
    std::vector<double> multipliers(tables.kinds());
    const auto& by_device = bound_->multipliers_without_limit();
    for (std::size_t i = 0; i < tables.devices(); ++i) multipliers[tables.kind_of(i)] = by_device[i];
    relaxation.set_limit(infinity);
    relaxation.solve(multipliers);
    StepTree search(relaxation, multipliers, check_);
    for (std::uint64_t unit = 0; unit < units; ++unit) spend();
    const auto found = search.run(best_step_ * (1 - resolution), units * suffixes_per_unit);
    offer(found.stages);
    if (!found.is_exhaustive) return false;
    Certificate certificate;
    certificate.kind = CertificateKind::Search;
    certificate.groups = tables.groups_of_devices();
    certificate.levels = tables.levels();
    certificate.rungs.push_back({{}, by_device});
    searched_ = certificate;
    return true;
  }

  bool is_proven() const { return bound_ && bound_->value() >= best_step_ * (1 - 1e-9); }

  Placement answer()
  {
    Placement placement;
    placement.stages = best_;
    placement.alternatives = kept_.without(best_);
    if (searched_) {
      placement.objective_bound = Seconds(best_step_ * (1 - resolution));
      placement.certificate = *searched_;
    } else if (bound_ && bound_->certificate().kind != CertificateKind::None) {
      placement.objective_bound = Seconds(std::min(bound_->value(), best_step_));
      placement.certificate = bound_->certificate();
    }
    if (!best_.empty()) {
      placement.outcome = is_over_ && !searched_ && !is_proven() ? Outcome::TimedOut : Outcome::Feasible;
    } else if (least_ == infinity) {
      placement.outcome = Outcome::Infeasible;
      placement.reason = why_none_fits(problem_, clock_);
    } else {
      placement.outcome = Outcome::TimedOut;
      placement.reason = "the limits came before any plan was found; more time or budget would do";
    }
    return placement;
  }

  const Problem problem_;
  const CostModel& cost_;
  Goal goal_;
  SearchClock clock_;
  std::function<void()> check_;
  double least_;  // no step is below; infinite where nothing fits
  std::vector<StagePlacement> best_;
  double best_step_ = infinity;
  std::optional<StepBound> bound_;
  std::optional<Certificate> searched_;
  double next_walk_ = 0.6;  // of the time
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

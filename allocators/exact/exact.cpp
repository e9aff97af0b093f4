#include "allocators/exact/exact.hpp"

#include "allocators/bounds.hpp"
#include "allocators/chain/local_search.hpp"
#include "allocators/chain/start_placements.hpp"
#include "allocators/exact/exact_step.hpp"
#include "allocators/exact/label_search.hpp"
#include "allocators/exact/ladder.hpp"
#include "allocators/exact/multipliers.hpp"
#include "allocators/exact/path_relaxation.hpp"
#include "allocators/exact/phase_flow.hpp"
#include "allocators/exact/stage_tables.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/search_clock.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace isobar::allocators {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class ExactSearch {
 public:
  explicit ExactSearch(const Problem& problem)
      : problem_(problem),
        cost_(problem.cost),
        clock_(limits_of(problem)),
        check_([this] { check(); }),
        weights_(weights_of(problem.goal)),
        bound_(objective_bound(cost_, problem.goal).value.value)
  {
  }

  /// The best lower bound to be had quickly, from the potentials or multipliers alone, given some placement.
  Bound bound_beside(const std::vector<StagePlacement>& known)
  {
    offer(known);
    try {
      if (bound_ < best_.objective) bound_only();
    } catch (const OutOfLimits&) {
      // What was proven before the process was asked to stop holds.
    }
    if (certificate_.kind == CertificateKind::None) return objective_bound(cost_, problem_.goal);
    return {Seconds(bound_), certificate_};
  }

  Placement place()
  {
    try {
      if (bound_ < infinity) search();
    } catch (const OutOfLimits&) {
      is_over_ = problem_.limits.budget || problem_.limits.time_limit || interrupted();
    }
    return answer();
  }

 private:
  void bound_only()
  {
    const StageTables tables(cost_, problem_.goal, most_groups, check_);
    if (tables.is_hereditary()) repetition_ = repetition_of(cost_);
    if (weights_.beta == 0) {
      bound_bottleneck(tables);
    } else {
      bound_sum(tables);
    }
  }

  /// Without limits: what takes some ten seconds at 64 devices.
  static SearchLimits limits_of(const Problem& problem)
  {
    SearchLimits limits = problem.limits;
    const bool is_quick = problem.goal.communication == Communication::None || problem.cost.devices() <= 20;
    if (!limits.budget && !limits.time_limit) limits.budget = is_quick ? 2'000 : 15;
    return limits;
  }

  void search()
  {
    const StageTables tables(cost_, problem_.goal, most_groups, check_);
    offer(best_start(problem_, clock_));
    if (problem_.goal.communication != Communication::None) {
      const Bound free = bound_without_transfers(cost_, problem_.goal, best_.stages);
      if (free.certificate.kind == CertificateKind::Path) prove(free.value.value, free.certificate);
    }
    if (tables.is_hereditary()) repetition_ = repetition_of(cost_);
    if (weights_.beta == 0) {
      if (repetition_ && search_phases(tables)) return;
      search_bottleneck(tables);
    } else {
      search_sum(tables);
    }
  }

  Placement answer()
  {
    Placement placement;
    placement.stages = best_.stages;
    if (certificate_.kind != CertificateKind::None) {
      placement.objective_bound = Seconds(std::min(bound_, best_.objective));
      placement.certificate = certificate_;
    }
    if (!best_.stages.empty()) {
      placement.outcome = is_over_ && !is_proven() ? Outcome::TimedOut : Outcome::Feasible;
    } else if (bound_ == infinity) {
      placement.outcome = Outcome::Infeasible;
      placement.reason = why_none_fits(problem_, clock_);
    } else {
      placement.outcome = Outcome::TimedOut;
      placement.reason = "the limits came before any plan was found; more time or budget would do";
    }
    return placement;
  }

  bool is_proven() const { return bound_ >= best_.objective * (1 - 1e-9); }

  void prove(double bound, Certificate certificate)
  {
    if (bound <= bound_ && certificate_.kind != CertificateKind::None) return;
    if (bound < bound_) return;
    bound_ = bound;
    certificate_ = std::move(certificate);
  }

  bool offer(const std::vector<StagePlacement>& stages)
  {
    if (stages.empty() || overfull_stage(cost_, problem_.goal, stages)) return false;
    const auto evaluation = cost_.evaluate(stages, problem_.goal);
    if (evaluation.objective.value >= best_.objective) return false;
    best_ = {stages, evaluation.objective.value, evaluation.bottleneck.value, evaluation.sum.value};
    return true;
  }

  /// Moves from the best placement; `share` of what local-search does by itself.
  void polish(double share)
  {
    if (best_.stages.empty() || is_proven()) return;
    const auto moves = static_cast<std::uint64_t>(
        share * 256 * std::clamp(static_cast<double>(cost_.layers() * cost_.devices()), 64.0, 62'500.0));
    offer(improve(cost_, problem_.goal, best_.stages, clock_, problem_.limits.seed, Seconds(bound_), moves));
    check_();
  }

  /// Looks at the limits. People who wait get longer walks too, in turns with the proof: a third of the time.
  void check()
  {
    clock_.leave_if_over();
    if (best_.stages.empty() || !clock_.left() || problem_.goal.communication == Communication::None) return;
    if (clock_.elapsed() < next_walk_) return;
    SearchClock clock({.budget = {}, .time_limit = std::min(clock_.elapsed() / 2, *clock_.left())});
    offer(improve(cost_, problem_.goal, best_.stages, clock, problem_.limits.seed, Seconds(bound_), 1ULL << 40));
    next_walk_ = clock_.elapsed() * (5.0 / 3);  // twice the walk from now
  }

  /// Without limits a search ends when it has kept so many labels; some seconds.
  bool is_exhausted() const
  {
    return !problem_.limits.budget && !problem_.limits.time_limit && labels_ > most_labels_by_default;
  }

  /// Takes a unit of the budget; leaves the search when none is left.
  void spend()
  {
    clock_.spend_or_leave();
    check_();
  }

  static Certificate at_limit(CertificateKind kind, double limit, const StageTables& tables,
                              std::vector<double> multipliers)
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

  /// The largest limit that potentials alone refuse, to 1e-9 relative; the flow keeps its potentials.
  double refused_by_potentials(PhaseFlow& flow, double refused, double known)
  {
    double open = 2 * refused;
    while (open < known && flow.potentials_refuse(open)) {
      refused = open;
      open *= 2;
    }
    open = std::min(open, known);
    while (open - refused > 1e-9 * open) {
      const double limit = (refused + open) / 2;
      (flow.potentials_refuse(limit) ? refused : open) = limit;
    }
    return flow.potentials_refuse(refused) ? refused : 0;
  }

  void bound_bottleneck(const StageTables& tables)
  {
    if (repetition_) {
      PhaseFlow flow(tables, *repetition_, check_);
      if (!flow.is_small_enough()) return;
      const double refused = refused_by_potentials(flow, bound_ * (1 - 1e-6), best_.objective);
      const double limit = std::min(refused, best_.objective * (1 - resolution));
      if (limit > bound_) {
        prove(limit, at_limit(CertificateKind::Path, limit, tables, tables.by_device(flow.multipliers())));
      }
      return;
    }
    PathRelaxation relaxation(tables, check_);
    Multipliers multipliers(tables);
    narrow(relaxation, multipliers, best_.objective, 1e-4, steps_of(tables) / 3);
  }

  /// Halves what lies between refused limits and `open` until it is narrow; proves what is refused.
  void narrow(PathRelaxation& relaxation, Multipliers& multipliers, double open, double width, std::size_t steps)
  {
    double refused = bound_ * (1 - 1e-6);
    while (open - refused > width * open) {
      spend();
      const double limit = (refused + open) / 2;
      relaxation.set_limit(limit);
      multipliers.ascend(relaxation, infinity, steps);
      if (multipliers.proven() == infinity) {
        refused = limit;
        prove(limit, at_limit(CertificateKind::Path, limit, relaxation.tables(), multipliers.by_device()));
      } else {
        open = limit;
      }
    }
  }

  static std::size_t steps_of(const StageTables& tables) { return tables.is_hereditary() ? 150 : 40; }

  void bound_sum(const StageTables& tables)
  {
    Ladder ladder(weights_.alpha);
    const auto lowest = floor();
    if (lowest) ladder.add(*lowest);
    PathRelaxation relaxation(tables, check_);
    std::optional<PhaseFlow> flow;
    if (repetition_) flow.emplace(tables, *repetition_, check_);
    if (flow && !flow->is_small_enough()) flow.reset();
    Ladder::Rung all;
    if (lowest) all.from = lowest->limit;
    price(all, flow, relaxation, 0.5);
    ladder.add(all);
    refine(ladder, flow, relaxation, 16);
    conclude(ladder, tables);
  }

  /// The bottleneck of a repeating chain without transfers. False when states run out of room.
  bool search_phases(const StageTables& tables)
  {
    PhaseFlow flow(tables, *repetition_, check_);
    if (!flow.is_small_enough()) return false;
    double refused = refused_by_potentials(flow, bound_ * (1 - 1e-6), best_.objective);
    if (refused > bound_) {
      prove(refused, at_limit(CertificateKind::Path, refused, tables, tables.by_device(flow.multipliers())));
    }
    // Just above it solutions have little to lose and states are few: climb from there.
    double stride = 1e-5 * refused;
    while (flow.next_limit(refused) < best_.objective * (1 - 1e-12)) {
      const double next = flow.next_limit(refused);
      if (next == infinity) {  // stages are as long as memory lets them be
        if (flow.solve(infinity, most_states).verdict == PhaseFlow::Verdict::Infeasible) bound_ = infinity;
        return bound_ == infinity;
      }
      double limit = std::min(refused + stride, best_.objective * (1 - resolution));
      limit = std::max({std::min(limit, (refused + best_.objective) / 2), next, refused * (1 + resolution)});
      spend();
      PhaseFlow::Answer answer;
      for (std::size_t states = 1000; states <= most_states; states *= 16) {
        answer = flow.solve(limit, states);
        if (answer.verdict != PhaseFlow::Verdict::Unknown) break;
      }
      if (answer.verdict == PhaseFlow::Verdict::Unknown) return false;
      if (answer.verdict == PhaseFlow::Verdict::Feasible) {
        offer(answer.stages);
        stride = (best_.objective - refused) / 2;
      } else {
        refused = limit;
        prove(refused, at_limit(CertificateKind::PhaseFlow, refused, tables, {}));
        stride *= 2;
      }
    }
    const double limit = best_.objective * (1 - resolution);
    if (flow.potentials_refuse(limit)) {
      prove(limit, at_limit(CertificateKind::Path, limit, tables, tables.by_device(flow.multipliers())));
    } else if (limit > bound_) {
      prove(limit, at_limit(CertificateKind::PhaseFlow, limit, tables, {}));
    }
    return true;
  }

  /// The bottleneck by multipliers and labels.
  void search_bottleneck(const StageTables& tables)
  {
    polish(tables.is_hereditary() ? 0.02 : 1);
    PathRelaxation relaxation(tables, check_);
    Multipliers multipliers(tables);
    const std::size_t steps = steps_of(tables);
    const auto refuse = [&](double limit) {
      prove(limit, at_limit(CertificateKind::Path, limit, tables, multipliers.by_device()));
    };
    double open = best_.objective;
    if (open == infinity) {  // from above: a limit that nothing refuses
      open = 4 * bound_;
      for (int i = 0; i < 60; ++i, open *= 2) {
        relaxation.set_limit(open);
        multipliers.ascend(relaxation, infinity, steps);
        if (multipliers.proven() != infinity) break;
        refuse(open);
      }
    }
    narrow(relaxation, multipliers, open, 2e-5, steps);
    enum class Found { Better, None, ProvenNone };
    const auto search_within = [&](double limit, std::size_t width) {
      spend();
      relaxation.set_limit(limit);
      multipliers.ascend(relaxation, infinity, steps / 2);
      if (multipliers.proven() == infinity) {
        if (limit < infinity) refuse(limit);
        return Found::ProvenNone;
      }
      LabelSearch search(relaxation, multipliers.best(), check_);
      const auto found = search.run(infinity, 0, width);
      labels_ += found.labels;
      if (found.placement && offer(found.placement->stages)) return Found::Better;
      if (!found.is_exhaustive) return Found::None;
      if (limit < infinity) prove(limit, at_limit(CertificateKind::Search, limit, tables, multipliers.by_device()));
      return Found::ProvenNone;
    };
    for (std::size_t width = 30; width <= widest && !is_proven() && !is_exhausted(); width *= 10) {
      // Just below what is known; where that succeeds, halfway to what is refused, again and again.
      while (!is_proven()) {
        const Found below = search_within(best_.objective * (1 - resolution), width);
        if (below == Found::ProvenNone && best_.objective == infinity) bound_ = infinity;
        if (below != Found::Better) break;
        for (double failed = bound_; best_.objective - failed > 1e-4 * best_.objective;) {
          const double limit = (failed + best_.objective) / 2;
          if (search_within(limit, width) != Found::Better) failed = limit;
        }
      }
    }
  }

  /// A limit below which no placement's largest cost lies, with multipliers that prove as much for the sum; from the
  /// chain without transfers, whose stages cost no more.
  std::optional<Ladder::Rung> floor()
  {
    if (weights_.alpha == 0) return std::nullopt;
    Goal goal = problem_.goal;
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
      rung.limit = refused_by_potentials(flow, least, known);
      ratios = flow.multipliers();
      const auto near = flow.solve(rung.limit * (1 + 1e-5), 16'000);
      if (near.verdict == PhaseFlow::Verdict::Feasible) offer(near.stages);
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
    const double worth = std::isfinite(best_.objective) ? best_.objective : bound_ * 1e4;
    for (double& ratio : ratios) ratio *= 2 * worth / excess;
    rung.multipliers = tables.by_device(ratios);
    return rung;
  }

  void search_sum(const StageTables& tables)
  {
    Ladder ladder(weights_.alpha);
    const auto lowest = floor();
    polish(repetition_ ? 0.05 : 1);
    if (lowest) ladder.add(*lowest);
    PathRelaxation relaxation(tables, check_);
    std::optional<PhaseFlow> flow;
    if (repetition_) flow.emplace(tables, *repetition_, check_);
    if (flow && !flow->is_small_enough()) flow.reset();
    Ladder::Rung all;
    if (lowest) all.from = lowest->limit;
    price(all, flow, relaxation, 2);
    ladder.add(all);
    conclude(ladder, tables);
    const std::size_t last = ladder.rungs().size() - 1;
    // Few devices: the labels may run out at once.
    const bool is_small = cost_.devices() <= 10 || weights_.alpha == 0 || best_.objective == infinity;
    for (std::size_t width = 1000; is_small && bound_ < infinity; width *= 10) {
      search_rung(ladder, last, relaxation, width);
      conclude(ladder, tables);
      if (best_.objective < infinity || width >= widest || is_exhausted()) break;
    }
    if (best_.objective == infinity) return;
    for (double before = 0; weights_.alpha == 0 && !is_proven() && bound_ > before * (1 + 1e-4);) {
      before = bound_;
      price(ladder.rungs()[last], flow, relaxation, 4);
      conclude(ladder, tables);
    }
    refine(ladder, flow, relaxation, finest);
    for (std::size_t width = 300; width <= widest && !is_proven() && !is_exhausted(); width *= 4) {
      const double before = best_.objective;
      const auto order = ladder.by_value();
      for (std::size_t i = 0; i < order.size() && i < 8 && !is_proven(); ++i) {
        if (flow && width <= most_states_for_sums) solve_flow(*flow, ladder.rungs()[order[i]], width);
        search_rung(ladder, order[i], relaxation, width);
        conclude(ladder, tables);
      }
      if (best_.objective < before) polish(0.1);
      refine(ladder, flow, relaxation, finest);
      conclude(ladder, tables);
    }
  }

  /// The least sum within a rung's limit, as far as multipliers prove it.
  void price(Ladder::Rung& rung, std::optional<PhaseFlow>& flow, PathRelaxation& relaxation, double effort)
  {
    spend();
    const StageTables& tables = relaxation.tables();
    if (flow) {
      rung.sum = flow->least_sum(rung.limit);
      rung.multipliers = tables.by_device(flow->multipliers());
      // Large multipliers cancel: what rounding may have added is not claimed.
      rung.sum -= 6e-12 * std::accumulate(rung.multipliers.begin(), rung.multipliers.end(), std::abs(rung.sum));
      return;
    }
    relaxation.set_limit(rung.limit);
    Multipliers multipliers = nearest_multipliers_ ? *nearest_multipliers_ : Multipliers(tables);
    const double target = std::isfinite(best_.objective) ? best_.objective - weights_.alpha * rung.from : infinity;
    multipliers.ascend(relaxation, target, static_cast<std::size_t>(effort * (tables.is_hereditary() ? 100 : 25)));
    nearest_multipliers_ = multipliers;
    if (!rung.multipliers.empty() && multipliers.proven() <= rung.sum) return;
    rung.sum = multipliers.proven();
    rung.multipliers = multipliers.by_device();
  }

  void conclude(const Ladder& ladder, const StageTables& tables)
  {
    double bound = ladder.bound();
    const bool is_searched = std::any_of(ladder.rungs().begin(), ladder.rungs().end(),
                                         [](const Ladder::Rung& rung) { return rung.is_searched; });
    if (bound == infinity && best_.objective == infinity) {
      bound_ = infinity;
      return;
    }
    if (is_searched || bound >= best_.objective) bound = std::min(bound, best_.objective * (1 - resolution));
    if (bound > bound_) prove(bound, ladder.certificate(tables.groups_of_devices(), tables.levels()));
  }

  /// Cuts the weakest rung again and again, until it is as fine as rungs get.
  void refine(Ladder& ladder, std::optional<PhaseFlow>& flow, PathRelaxation& relaxation, std::size_t most_rounds)
  {
    const double alpha = weights_.alpha;
    const StageTables& tables = relaxation.tables();
    for (std::size_t round = 0; alpha > 0 && !is_proven() && round < most_rounds; ++round) {
      const std::size_t weakest = ladder.weakest();
      const Ladder::Rung rung = ladder.rungs()[weakest];
      if (ladder.value(rung) >= best_.objective * (1 - resolution)) break;
      if (!flow && !rung.is_priced_well && alpha * (rung.limit - rung.from) <= coarse_rung * best_.objective) {
        price_well(ladder, weakest, flow, relaxation);
        conclude(ladder, tables);
        continue;
      }
      const double middle = (rung.from + rung.limit) / 2;
      double limit = (best_.objective - rung.sum) / alpha;  // the upper part is done with
      if (!(limit < middle && limit > rung.from * (1 + 1e-9)) && rung.limit < infinity) {
        if (alpha * (rung.limit - rung.from) <= finest_rung * best_.objective) break;
        limit = middle;
      }
      Ladder::Rung lower = ladder.split(weakest, limit);
      price(lower, flow, relaxation, 1);
      ladder.add(lower);
      if (flow && most_rounds == finest && round % 3 == 0) solve_flow(*flow, lower, 300);
      conclude(ladder, tables);
    }
  }

  /// More steps for one rung; what they prove holds for smaller limits too.
  void price_well(Ladder& ladder, std::size_t index, std::optional<PhaseFlow>& flow, PathRelaxation& relaxation)
  {
    Ladder::Rung priced = ladder.rungs()[index];
    priced.is_priced_well = true;
    price(priced, flow, relaxation, 6);
    ladder.rungs()[index] = priced;
    for (Ladder::Rung& rung : ladder.rungs()) {
      if (rung.limit > priced.limit || rung.sum >= priced.sum) continue;
      rung.sum = priced.sum;
      rung.multipliers = priced.multipliers;
    }
  }

  void solve_flow(PhaseFlow& flow, const Ladder::Rung& rung, std::size_t states)
  {
    spend();
    if (weights_.alpha * rung.from + rung.sum >= best_.objective) return;
    offer(flow.solve(rung.limit, states, best_.objective - weights_.alpha * rung.from).stages);
  }

  void search_rung(Ladder& ladder, std::size_t index, PathRelaxation& relaxation, std::size_t width)
  {
    spend();
    Ladder::Rung& rung = ladder.rungs()[index];
    if (ladder.value(rung) >= best_.objective * (1 - resolution)) return;
    const StageTables& tables = relaxation.tables();
    std::vector<double> multipliers(tables.kinds());
    for (std::size_t i = 0; i < tables.devices(); ++i) multipliers[tables.kind_of(i)] = rung.multipliers[i];
    relaxation.set_limit(rung.limit);
    relaxation.solve(multipliers);
    LabelSearch search(relaxation, multipliers, check_);
    const auto found = search.run(best_.objective * (1 - resolution), rung.from, width);
    labels_ += found.labels;
    if (found.placement) offer(found.placement->stages);
    if (found.is_exhaustive) rung.is_searched = true;
  }

  static constexpr std::size_t most_groups = 12;
  static constexpr std::size_t finest = 10'000;  // rounds
  static constexpr std::size_t most_states = 4'096'000;
  static constexpr std::size_t most_states_for_sums = 20'000;
  static constexpr std::size_t widest = 1'000'000;
  static constexpr std::size_t most_labels_by_default = 300'000;

  const Problem problem_;
  const CostModel& cost_;
  SearchClock clock_;
  std::function<void()> check_;
  ObjectiveWeights weights_;
  std::optional<Repetition> repetition_;
  std::optional<Multipliers> nearest_multipliers_;
  FoundPlacement best_{{}, infinity, infinity, infinity};
  double bound_;
  Certificate certificate_;
  bool is_over_ = false;
  Seconds next_walk_{0.2};  // on the clock
  std::size_t labels_ = 0;  // kept so far
};

}  // namespace

Bound bound_without_transfers(const CostModel& cost, const Goal& goal, const std::vector<StagePlacement>& known)
{
  Goal free = goal;
  free.communication = Communication::None;
  return ExactSearch({cost, free, {}}).bound_beside(known);
}

Placement place_exactly(const Problem& problem)
{
  return problem.goal.objective == Objective::Step ? place_step_exactly(problem) : ExactSearch(problem).place();
}

}  // namespace isobar::allocators

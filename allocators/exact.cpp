#include "allocators/exact.hpp"

#include "allocators/bounds.hpp"
#include "allocators/chain_dp.hpp"
#include "allocators/label_search.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/multipliers.hpp"
#include "allocators/path_relaxation.hpp"
#include "allocators/phase_flow.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/stage_tables.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <cstdio>

namespace isobar::allocators {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// Where a plan and its bound count as equal; a tenth of the checker's tolerance.
constexpr double resolution = 1e-10;

struct OutOfLimits {};

class ExactSearch {
 public:
  explicit ExactSearch(const Problem& problem)
      : problem_(problem),
        cost_(problem.cost),
        clock_(problem.limits),
        check_([this] {
          if (clock_.is_over()) throw OutOfLimits{};
        })
  {
  }

  Placement place()
  {
    const StageTables tables(cost_, problem_.goal, most_groups(), check_);
    fprintf(stderr, "%.3f tables: kinds %zu groups %zu levels %zu hereditary %d exact places %d\n", clock_.elapsed().value,
            tables.kinds(), tables.groups(), tables.levels(), tables.is_hereditary(), tables.places_are_exact());
    start();
    try {
      if (tables.weights().beta == 0) {
        search_bottleneck(tables);
      } else {
        search_sum(tables);
      }
    } catch (const OutOfLimits&) {
      placement_.outcome = Outcome::TimedOut;
    }
    placement_.stages = best_.stages;
    placement_.objective_bound = Seconds(bound_); placement_.certificate.kind = CertificateKind::Path;
    return placement_;
  }

 private:
  struct Rung {
    double from;  // the largest cost is above it
    double limit;
    double sum;   // proven least sum
    bool searched = false;
    Multipliers multipliers;
  };

  std::size_t most_groups() const { return 12; }

  void start()
  {
    bound_ = objective_bound(cost_, problem_.goal).value.value;
    SearchLimits limits;
    limits.budget = 20;
    if (cost_.devices() * cost_.layers() < 100'000) offer(place_by_chain_dp({cost_, problem_.goal, limits}).stages);
    fprintf(stderr, "%.3f start: best %.9g bound %.9g gap %.4f%%\n", clock_.elapsed().value, best_.objective, bound_, gap());
  }
  double gap() const { return 100 * (best_.objective - bound_) / best_.objective; }

  bool offer(const std::vector<StagePlacement>& stages)
  {
    if (stages.empty()) return false;
    const auto evaluation = cost_.evaluate(stages, problem_.goal);
    if (evaluation.objective.value >= best_.objective) return false;
    best_ = {stages, evaluation.objective.value, evaluation.bottleneck.value, evaluation.sum.value};
    return true;
  }
  bool offer(const LabelSearch::Answer& answer) { return answer.placement && offer(answer.placement->stages); }

  void search_bottleneck(const StageTables& tables)
  {
    if (tables.is_hereditary()) {
      if (const auto repetition = repetition_of(cost_, 3)) {
        PhaseFlow flow(tables, *repetition, check_);
        fprintf(stderr, "repetition %zu %zu %zu small %d\n", repetition->prefix, repetition->period, repetition->repeats,
                flow.is_small_enough());
        if (flow.is_small_enough()) search_phases(flow);
        if (is_proven()) return;
      }
    }
    search_by_multipliers(tables);
  }

  bool is_proven() const { return bound_ >= best_.objective * (1 - 1e-9); }

  void search_phases(PhaseFlow& flow)
  {
    double refused = bound_ * (1 - resolution);
    double open = 2 * refused;
    while (open < best_.objective && flow.potentials_refuse(open)) {
      refused = open;
      open *= 2;
    }
    open = std::min(open, best_.objective);
    // What potentials alone refuse.
    for (int step = 0; step < 40 && open - refused > 1e-9 * open; ++step) {
      const double limit = (refused + open) / 2;
      (flow.potentials_refuse(limit) ? refused : open) = limit;
    }
    bound_ = std::max(bound_, refused);
    fprintf(stderr, "%.3f potentials: refused %.9g open %.9g\n", clock_.elapsed().value, refused, open);
    // Just above it, solutions have little to lose and states are few: climb from there.
    double stride = 1e-5 * refused;
    while (flow.next_limit(refused) < best_.objective * (1 - 1e-12)) {
      double limit = std::max(refused + stride, flow.next_limit(refused));
      limit = std::min({limit, (refused + best_.objective) / 2, best_.objective * (1 - resolution)});
      limit = std::max(limit, flow.next_limit(refused));
      PhaseFlow::Answer answer;
      for (std::size_t states = 1000; states <= 4'000'000 && answer.verdict == PhaseFlow::Verdict::Unknown; states *= 16) {
        answer = flow.solve(limit, states);
      }
      fprintf(stderr, "%.3f solve %.9g: %d (in %.9g %.9g)\n", clock_.elapsed().value, limit, (int)answer.verdict, refused, best_.objective);
      if (answer.verdict == PhaseFlow::Verdict::Feasible) {
        offer(answer.stages);
        stride = (best_.objective - refused) / 2;
      } else if (answer.verdict == PhaseFlow::Verdict::Infeasible) {
        refused = limit;
        bound_ = std::max(bound_, refused);
        stride *= 2;
      } else {
        return;
      }
    }
    bound_ = best_.objective * (1 - resolution);
  }

  void search_by_multipliers(const StageTables& tables)
  {
    PathRelaxation relaxation(tables, check_);
    Multipliers multipliers(tables);
    double refused = bound_ * (1 - resolution);
    double open = best_.objective;
    int steps = 0;
    while (open - refused > 2e-5 * open) {
      const double limit = (refused + open) / 2;
      relaxation.set_limit(limit);
      multipliers.ascend(relaxation, infinity, 150);
      ++steps;
      if (multipliers.proven() == infinity) {
        refused = limit;
      } else {
        open = limit;
      }
    }
    bound_ = std::max(bound_, refused);
    fprintf(stderr, "%.3f multipliers: refused %.9g open %.9g gap %.4f\n", clock_.elapsed().value, refused, open, gap());
    for (std::size_t width = 30; width <= 30'000 && !is_proven(); width *= 10) {
      double failed = refused;
      while (best_.objective - failed > 1e-4 * best_.objective) {
        const double limit = std::max((failed + best_.objective) / 2, failed + (best_.objective - failed) * 0.5);
        relaxation.set_limit(limit);
        multipliers.ascend(relaxation, infinity, 60);
        if (multipliers.proven() == infinity) {
          failed = std::max(failed, limit);
          bound_ = std::max(bound_, limit);
          refused = std::max(refused, limit);
          continue;
        }
        LabelSearch search(relaxation, multipliers.best(), check_);
        const auto answer = search.run(infinity, 0, width);
        if (!offer(answer)) failed = limit;
        if (!answer.placement && answer.is_exhaustive) {
          bound_ = std::max(bound_, limit);
          refused = std::max(refused, limit);
        }
        fprintf(stderr, "%.3f width %zu limit %.9g found %d exhaustive %d labels %zu: gap %.4f%%\n", clock_.elapsed().value, width, limit,
                answer.placement.has_value(), answer.is_exhaustive, answer.labels, gap());
      }
      const double last = best_.objective * (1 - resolution);
      (void)last;
    }
  }

  void search_sum(const StageTables& tables)
  {
    PathRelaxation relaxation(tables, check_);
    Multipliers multipliers(tables);
    const double alpha = tables.weights().alpha;
    if (alpha == 0) {
      relaxation.set_limit(infinity);
      for (int i = 0; i < 10; ++i) {
        multipliers.ascend(relaxation, best_.objective, 100);
        bound_ = std::max(bound_, multipliers.proven());
        fprintf(stderr, "%.3f ascend: %.9g gap %.4f%%\n", clock_.elapsed().value, multipliers.proven(), gap());
      }
      for (std::size_t width = 30; width <= 30'000 && !is_proven(); width *= 10) {
        LabelSearch search(relaxation, multipliers.best(), check_);
        const auto answer = search.run(best_.objective, 0, width);
        offer(answer);
        if (answer.is_exhaustive) bound_ = best_.objective * (1 - resolution);
        fprintf(stderr, "%.3f width %zu found %d exhaustive %d labels %zu: best %.9g gap %.4f%%\n", clock_.elapsed().value, width,
                answer.placement.has_value(), answer.is_exhaustive, answer.labels, best_.objective, gap());
      }
      return;
    }
    const auto repetition = repetition_of(cost_, 3);
    if (tables.is_hereditary() && repetition) {
      PhaseFlow flow(tables, *repetition, check_);
      if (flow.is_small_enough()) { climb_phases(flow); return; }
    }
    if (getenv("TDBG")) {
      relaxation.set_limit(atof(getenv("TDBG")));
      for (int i = 0; i < 12; ++i) {
        multipliers.ascend(relaxation, best_.objective - alpha * atof(getenv("TDBG")), 40);
        fprintf(stderr, "%.3f T %s: %.6f -> total %.6f; mult", clock_.elapsed().value, getenv("TDBG"), multipliers.proven(), multipliers.proven() + alpha * atof(getenv("TDBG")));
        std::vector<std::uint32_t> uses; relaxation.count_uses(uses);
        for (std::size_t k = 0; k < uses.size(); ++k) fprintf(stderr, " %.4f(%u/%zu)", multipliers.best()[k], uses[k], tables.devices_of(k).size());
        fprintf(stderr, "\n");
      }
    }
    // Ladder.
    std::vector<Rung> rungs;
    const double least = find_floor();
    fprintf(stderr, "%.3f floor %.9g (fractional %.9g) best %.9g\n", clock_.elapsed().value, least, bottleneck_floor(), best_.objective);
    rungs.push_back({0, infinity, 0, false, multipliers});
    improve(rungs[0], relaxation, 60);
    {
      Rung lowest = rungs[0];
      lowest.limit = least;
      lowest.sum = infinity;
      rungs[0].from = least;
      rungs.push_back(lowest);
    }
    const auto value = [&](const Rung& rung) { return alpha * rung.from + rung.sum; };
    primal(rungs[0], relaxation, 30);
    for (int round = 0;; ++round) {
      std::size_t worst = 0;
      for (std::size_t i = 1; i < rungs.size(); ++i) {
        if (value(rungs[i]) < value(rungs[worst])) worst = i;
      }
      bound_ = std::max(bound_, value(rungs[worst]));
      if (round % 20 == 0)
        fprintf(stderr, "%.3f rungs %zu best %.9g bound %.9g gap %.4f%%, worst (%.6g %.6g] sum %.6g\n", clock_.elapsed().value, rungs.size(),
                best_.objective, bound_, gap(), rungs[worst].from, rungs[worst].limit, rungs[worst].sum);
      if (is_proven() || round > 400) break;
      Rung& rung = rungs[worst];
      const double high = std::min(rung.limit, (best_.objective - rung.sum) / alpha);
      if (high < rung.limit && high > rung.from) {
        split(rungs, worst, high, relaxation);
        continue;
      }
      if (alpha * (rung.limit - rung.from) > 1e-4 * best_.objective) {
        const double middle = (rung.from + rung.limit) / 2;
        split(rungs, worst, middle, relaxation);
        if (round % 2 == 0) primal(rungs.back(), relaxation, 10);
        continue;
      }
      // Narrow: better multipliers, then a search.
      const double before = rung.sum;
      improve(rung, relaxation, 200);
      if (rung.sum > before * (1 + 1e-4)) continue;
      break;
    }
    for (std::size_t width : {100, 1000, 4000}) {
      std::vector<std::size_t> order(rungs.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::sort(order.begin(), order.end(), [&](auto a, auto b) { return value(rungs[a]) < value(rungs[b]); });
      for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 12); ++i) primal(rungs[order[i]], relaxation, width);
      fprintf(stderr, "%.3f width %zu best %.9g gap %.4f%%\n", clock_.elapsed().value, width, best_.objective, gap());
    }
  }

  void climb_phases(PhaseFlow& flow)
  {
    const double alpha = weights_of(problem_.goal).alpha;
    struct Step { double from, limit, sum; };
    std::vector<Step> steps;
    const double least = find_floor();
    steps.push_back({least, infinity, 0});
    const double most = (best_.objective - sum_floor()) / alpha;
    steps[0].limit = most;
    steps[0].sum = flow.least_sum(most);
    const auto value = [&](const Step& rung) { return alpha * rung.from + rung.sum; };
    for (int round = 0;; ++round) {
      std::size_t worst = 0;
      for (std::size_t i = 1; i < steps.size(); ++i) if (value(steps[i]) < value(steps[worst])) worst = i;
      bound_ = std::max(bound_, value(steps[worst]));
      if (round % 10 == 0)
      fprintf(stderr, "%.3f steps %zu best %.9g bound %.9g gap %.4f%%, worst (%.6g %.6g] sum %.6g\n", clock_.elapsed().value, steps.size(),
                best_.objective, bound_, gap(), steps[worst].from, steps[worst].limit, steps[worst].sum);
      if (is_proven()) break;
      Step& rung = steps[worst];
      const double high = (best_.objective - rung.sum) / alpha;
      const double width = alpha * (rung.limit - rung.from);
      if (width < 2e-5 * best_.objective) break;
      const double middle = high < rung.limit && high > rung.from ? high : (rung.from + rung.limit) / 2;
      const Step lower{rung.from, middle, flow.least_sum(middle)};
      rung.from = middle;
      steps.push_back(lower);
      if (round % 3 == 0 && value(lower) < best_.objective) {
        const auto answer = flow.solve(middle, 300, best_.objective - alpha * lower.from);
        const bool better = offer(answer.stages);
        fprintf(stderr, "%.3f  solve at %.6g: %d better %d best %.9g\n", clock_.elapsed().value, middle, (int)answer.verdict, better, best_.objective);
      }
    }
    for (std::size_t states : {1000, 10000}) {
      std::sort(steps.begin(), steps.end(), [&](const auto& a, const auto& b) { return value(a) < value(b); });
      for (std::size_t i = 0; i < std::min<std::size_t>(steps.size(), 6); ++i) {
        const auto answer = flow.solve(steps[i].limit, states, best_.objective - alpha * steps[i].from);
        const bool better = offer(answer.stages);
        fprintf(stderr, "%.3f  %zu solve at %.6g: %d better %d best %.9g gap %.4f\n", clock_.elapsed().value, states, steps[i].limit, (int)answer.verdict, better, best_.objective, gap());
      }
    }
  }

  double sum_floor()
  {
    Goal goal = problem_.goal;
    goal.objective = Objective::Sequential;
    return objective_bound(cost_, goal).value.value;
  }

  double find_floor()
  {
    double floor = bottleneck_floor() * (1 - resolution);
    Goal goal = problem_.goal;
    goal.objective = Objective::Bottleneck;
    goal.communication = Communication::None;
    const StageTables tables(cost_, goal, 1, check_);
    const auto repetition = repetition_of(cost_, 3);
    if (!tables.is_hereditary() || !repetition) return floor;
    PhaseFlow flow(tables, *repetition, check_);
    double open = 2 * floor;
    while (open < best_.bottleneck && flow.potentials_refuse(open)) {
      floor = open;
      open *= 2;
    }
    for (int step = 0; step < 40 && open - floor > 1e-9 * open; ++step) {
      const double limit = (floor + open) / 2;
      (flow.potentials_refuse(limit) ? floor : open) = limit;
    }
    const auto answer = flow.solve(floor * (1 + 1e-5), 20000);
    if (answer.verdict == PhaseFlow::Verdict::Feasible) offer(answer.stages);
    return floor;
  }

  double bottleneck_floor()
  {
    Goal goal = problem_.goal;
    goal.objective = Objective::Bottleneck;
    return objective_bound(cost_, goal).value.value;
  }

  void primal(Rung& rung, PathRelaxation& relaxation, std::size_t width)
  {
    relaxation.set_limit(rung.limit);
    relaxation.solve(rung.multipliers.best());
    LabelSearch search(relaxation, rung.multipliers.best(), check_);
    offer(search.run(best_.objective, rung.from, width));
  }

  void improve(Rung& rung, PathRelaxation& relaxation, std::size_t steps)
  {
    relaxation.set_limit(rung.limit);
    const double alpha = weights_of(problem_.goal).alpha;
    rung.multipliers.ascend(relaxation, best_.objective - alpha * rung.from, steps);
    rung.sum = std::max(rung.sum, rung.multipliers.proven());
  }

  void split(std::vector<Rung>& rungs, std::size_t at, double limit, PathRelaxation& relaxation)
  {
    Rung lower = rungs[at];
    lower.limit = limit;
    rungs[at].from = limit;
    improve(lower, relaxation, 40);
    rungs.push_back(lower);
  }

  const Problem& problem_;
  const CostModel& cost_;
  SearchClock clock_;
  std::function<void()> check_;
  FoundPlacement best_{{}, infinity, infinity, infinity};
  double bound_ = 0;
  Placement placement_;
};

}  // namespace

Placement place_exactly(const Problem& problem)
{
  return ExactSearch(problem).place();
}

}  // namespace isobar::allocators

#include "allocators/planners/dtfm_exact.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/fast_random.hpp"
#include "allocators/planners/dtfm_compositions.hpp"
#include "allocators/planners/dtfm_costs.hpp"
#include "allocators/planners/dtfm_paths.hpp"
#include "allocators/search_clock.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr Seconds longest_exact_search(300);
constexpr std::size_t annealing_moves = 30'000;
constexpr std::size_t rungs = 16;
constexpr std::size_t most_steps = 150;  // of the multipliers of a rung
constexpr std::size_t most_steps_without_gain = 4;
constexpr double worthwhile_gain = 0.02;  // of what is missing
constexpr double slowest_pace = 0.1;
constexpr double tie = 1e-9;  // relative: syncs that differ by rounding only are within the same limits

/// Finds a cheap sequence of stages without proof.
class StartSearch {
 public:
  StartSearch(const DtFmCosts& costs, const DeviceClasses& classes, std::uint64_t seed)
      : costs_(costs), classes_(classes), random_(seed)
  {
  }

  /// All devices class by class, a stage after the other.
  StageSequence in_turn() const
  {
    StageSequence sequence;
    ClassCounts left = classes_.rooms();
    std::size_t s = 0;
    for (std::size_t i = 0; i < costs_.stages(); ++i) {
      auto& stage = sequence.stages.emplace_back(classes_.size(), 0);
      for (std::size_t k = 0; k < costs_.replicas(); ++k) {
        while (left[s] == 0) ++s;
        --left[s];
        ++stage[s];
      }
    }
    sequence.cost = cost_of(sequence.stages);
    return sequence;
  }

  /// The best sequence of one or two runs of equal stages, if they use all devices.
  void try_runs(const Compositions& compositions, StageSequence& best) const
  {
    if (!costs_.uses_all()) return;
    const std::size_t stages = costs_.stages();
    for (std::size_t i = 0; i < compositions.size(); ++i) {
      const auto first = compositions[i];
      for (std::size_t length = 1; length <= stages; ++length) {
        const auto second = rest_of(first, length);
        if (!second) continue;
        StageSequence sequence;
        sequence.stages.assign(length, ClassCounts(first.begin(), first.end()));
        sequence.stages.resize(stages, *second);
        sequence.cost = cost_of(sequence.stages);
        if (sequence.cost < best.cost) best = std::move(sequence);
      }
    }
  }

  /// Improves a sequence by exchanging devices of two stages, or of a stage and the idle ones, and reversing parts.
  void anneal(const SearchClock& clock, StageSequence& best)
  {
    auto places = best.stages;  // and the idle devices
    ClassCounts idle = classes_.rooms();
    for (const auto& stage : places) {
      for (std::size_t s = 0; s < idle.size(); ++s) idle[s] = static_cast<std::uint16_t>(idle[s] - stage[s]);
    }
    if (!costs_.uses_all()) places.push_back(idle);
    if (places.size() == 1 || classes_.size() == 1) return;
    const std::size_t stages = costs_.stages();
    double current = best.cost;
    const double hottest = 0.05 * best.cost;
    for (std::size_t move = 0; move < annealing_moves; ++move) {
      if (move % 64 == 0 && clock.is_over()) return;
      const double heat = hottest * std::pow(1e-4, static_cast<double>(move) / annealing_moves);
      const std::size_t i = random_.below(places.size());
      const std::size_t j = random_.below(places.size());
      const std::size_t s = random_.below(classes_.size());
      const std::size_t t = random_.below(classes_.size());
      const bool reverses = i < j && j < stages && random_.below(8) == 0;
      const auto apply = [&](std::size_t given, std::size_t taken) {
        if (reverses) {
          std::reverse(places.begin() + static_cast<std::ptrdiff_t>(i),
                       places.begin() + static_cast<std::ptrdiff_t>(j) + 1);
          return;
        }
        --places[i][given];
        ++places[j][given];
        --places[j][taken];
        ++places[i][taken];
      };
      if (!reverses && (i == j || s == t || places[i][s] == 0 || places[j][t] == 0)) continue;
      apply(s, t);
      const double cost = cost_of({places.data(), stages});
      if (cost > current && random_.uniform() >= std::exp((current - cost) / heat)) {
        apply(t, s);
        continue;
      }
      current = cost;
      if (cost >= best.cost) continue;
      best.cost = cost;
      best.stages.assign(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(stages));
    }
  }

 private:
  double cost_of(std::span<const ClassCounts> stages) const
  {
    double sync = 0;
    double passes = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      sync = std::max(sync, classes_.sync_of(stages[i]));
      if (i > 0) passes += classes_.time_of(classes_.hop(stages[i - 1], stages[i]));
    }
    return sync + 2 * passes;
  }

  /// The composition of all stages after the first `length`, if they can be equal.
  std::optional<ClassCounts> rest_of(std::span<const std::uint16_t> first, std::size_t length) const
  {
    const std::size_t others = costs_.stages() - length;
    ClassCounts rest(classes_.size(), 0);
    for (std::size_t s = 0; s < rest.size(); ++s) {
      const std::size_t taken = length * first[s];
      if (taken > classes_.room(s)) return std::nullopt;
      const std::size_t left = classes_.room(s) - taken;
      if (others == 0 ? left > 0 : left % others != 0) return std::nullopt;
      if (others > 0) rest[s] = static_cast<std::uint16_t>(left / others);
    }
    return rest;
  }

  const DtFmCosts& costs_;
  const DeviceClasses& classes_;
  FastRandom random_;
};

/// Proves a bound on the cost of all sequences, rung by rung, and improves the best one on the way.
class DtFmProof {
 public:
  DtFmProof(const DtFmCosts& costs, const DeviceClasses& classes, const Compositions& compositions, SearchClock& clock)
      : costs_(costs),
        classes_(classes),
        compositions_(compositions),
        paths_(classes, compositions, costs.stages()),
        clock_(clock),
        least_sync_(costs.least_sync()),
        least_passes_(costs.stages() > 1 ? static_cast<double>(costs.stages() - 1) * costs.least_pass() : 0),
        multipliers_(classes.kinds(), 0)
  {
    certificate.kind = CertificateKind::DtFm;
  }

  /// Proves the cost of `best` up to proof_precision, or as much as the limits allow.
  void run(StageSequence& best)
  {
    try {
      while (least_beyond_proven() < target(best)) prove(next_count(proven_, best), best);
    } catch (const OutOfLimits&) {
      is_complete = false;
    }
    bound = std::min({least_of_rungs_, least_beyond_proven(), best.cost});
  }

  double bound = 0;
  Certificate certificate;
  bool is_complete = true;

 private:
  static double target(const StageSequence& best) { return best.cost * (1 - proof_precision); }

  /// The shortest sync of a placement with a stage beyond the first `count` compositions; infinity if there is none.
  double sync_beyond(std::size_t count) const
  {
    if (count >= compositions_.size()) return infinity;
    return std::max(least_sync_, compositions_.sync[count]);
  }
  /// The least cost of such a placement.
  double least_beyond(std::size_t count) const { return sync_beyond(count) + 2 * least_passes_; }
  /// What a certificate with the rungs so far proves of it: without any, no compositions are known.
  double least_beyond_proven() const { return proven_ == 0 ? least_sync_ + 2 * least_passes_ : least_beyond(proven_); }

  /// The end of the next rung: the limits of rungs lie evenly between the shortest sync and the longest that matters.
  std::size_t next_count(std::size_t count, const StageSequence& best) const
  {
    const double longest = target(best) - 2 * least_passes_;
    const auto end_of = [&](double limit) {
      const auto end = std::upper_bound(compositions_.sync.begin(), compositions_.sync.end(), limit * (1 + tie));
      return static_cast<std::size_t>(end - compositions_.sync.begin());
    };
    const double shortest = sync_beyond(0);
    for (std::size_t rung = 1; rung < rungs; ++rung) {
      const double part = static_cast<double>(rung) / rungs;
      const std::size_t end = end_of(shortest + part * (longest - shortest));
      if (end > count && least_beyond(end) < target(best)) return end;
    }
    // Those whose sync alone makes them too dear stay out.
    std::size_t end = compositions_.size();
    while (end > count + 1 && least_beyond(end - 1) >= target(best)) --end;
    return end_of(compositions_.sync[end - 1]);
  }

  /// Proves the rung that ends at that composition.
  void prove(std::size_t count, StageSequence& best)
  {
    const double sync = sync_beyond(proven_);
    auto chosen = multipliers_;
    double passes = -infinity;
    const auto record = [&](double least) {
      Certificate::Rung rung{Seconds(compositions_.sync[count - 1]), {}};
      for (std::size_t s = 0; s < classes_.size(); ++s) rung.multipliers.push_back(chosen[classes_.kind_of(s)]);
      certificate.groups = classes_.classes_of_devices();
      certificate.rungs.push_back(std::move(rung));
      least_of_rungs_ = std::min(least_of_rungs_, least);
      proven_ = count;
    };
    const auto is_proven = [&] { return sync + 2 * passes >= target(best); };
    try {
      climb(count, sync, best, chosen, passes);
      if (!is_proven()) {
        paths_.relax(count, chosen, clock_);
        paths_.search(count, sync, clock_, best);
      }
    } catch (const OutOfLimits&) {
      if (passes > -infinity) record(sync + 2 * passes);
      throw;
    }
    record(infinity);
  }

  /// Subgradient steps towards multipliers with a high bound on the passes of a rung.
  void climb(std::size_t count, double sync, const StageSequence& best, std::vector<double>& chosen, double& passes)
  {
    double pace = 1;
    std::size_t without_gain = 0;
    for (std::size_t step = 0; step < most_steps && pace > slowest_pace; ++step) {
      clock_.spend_or_leave();
      const auto relaxed = paths_.relax(count, multipliers_, clock_);
      const double wanted = (best.cost - sync) / 2;
      const bool is_gain = relaxed.bound > passes;
      const bool is_much = passes == -infinity || relaxed.bound > passes + worthwhile_gain * (wanted - passes);
      if (is_gain) {
        passes = relaxed.bound;
        chosen = multipliers_;
      }
      if (is_much) {
        without_gain = 0;
      } else if (++without_gain >= most_steps_without_gain) {
        pace /= 2;
        multipliers_ = chosen;
        without_gain = 0;
      }
      if (sync + 2 * passes >= target(best)) break;
      std::vector<double> excess(classes_.kinds(), 0);  // of the uses of a class
      std::vector<double> number(classes_.kinds(), 0);
      for (std::size_t s = 0; s < classes_.size(); ++s) {
        excess[classes_.kind_of(s)] -= classes_.room(s);
        ++number[classes_.kind_of(s)];
      }
      double square = 0;
      for (std::size_t kind = 0; kind < excess.size(); ++kind) {
        excess[kind] = (excess[kind] + relaxed.used[kind]) / number[kind];
        square += number[kind] * excess[kind] * excess[kind];
      }
      if (square == 0) break;  // no multipliers are better
      double least = infinity;
      for (std::size_t kind = 0; kind < excess.size(); ++kind) {
        multipliers_[kind] += pace * (wanted - relaxed.bound) / square * excess[kind];
        least = std::min(least, multipliers_[kind]);
      }
      // Where all devices are used, the same more for each changes nothing.
      for (double& multiplier : multipliers_) {
        multiplier = costs_.uses_all() ? multiplier - least : std::max(0.0, multiplier);
      }
    }
    multipliers_ = chosen;
  }

  const DtFmCosts& costs_;
  const DeviceClasses& classes_;
  const Compositions& compositions_;
  StagePaths paths_;
  SearchClock& clock_;
  double least_sync_;
  double least_passes_;
  std::vector<double> multipliers_;   // of a device of each kind
  std::size_t proven_ = 0;            // compositions
  double least_of_rungs_ = infinity;  // proven of them
};

/// Takes devices of the classes for the stages, in the order of the file.
DtFmGroups groups_of(const StageSequence& sequence, const DeviceClasses& classes)
{
  std::vector<std::size_t> taken(classes.size(), 0);
  DtFmGroups groups;
  for (const auto& stage : sequence.stages) {
    auto& group = groups.emplace_back();
    for (std::size_t s = 0; s < stage.size(); ++s) {
      for (std::size_t k = 0; k < stage[s]; ++k) group.push_back(classes.members(s)[taken[s]++]);
    }
  }
  return groups;
}

}  // namespace

Proposals propose_by_exact_dtfm(const HybridProblem& problem)
{
  SearchClock clock(limited_to(longest_exact_search, problem.limits));
  Proposals proposals;
  std::string too_many;
  for (const auto& shape : dtfm_shapes(problem)) {
    const DtFmCosts costs = dtfm_costs(problem, shape);
    const DeviceClasses classes(costs);
    if (number_of_compositions(classes, shape.replicas) > most_compositions) {
      too_many = fmt::format(
          "dtfm-exact takes at most {} ways in which a stage can have its devices; {} of {} have more; use dtfm",
          most_compositions, counted(shape.replicas, "device"), counted(classes.size(), "class", "es"));
      continue;
    }
    const Compositions compositions(classes, shape.replicas);
    StartSearch start(costs, classes, problem.limits.seed);
    StageSequence best = start.in_turn();
    start.try_runs(compositions, best);
    start.anneal(clock, best);
    DtFmProof proof(costs, classes, compositions, clock);
    proof.run(best);
    Plan plan = dtfm_plan(problem, costs, groups_of(best, classes));
    if (problem.goal.objective == Objective::DtFm) {
      plan.objective_bound = Seconds(proof.bound);
      plan.certificate = std::move(proof.certificate);
    }
    if (!proof.is_complete) plan.outcome = Outcome::TimedOut;
    proposals.plans.push_back(std::move(plan));
  }
  if (proposals.plans.empty() && !too_many.empty()) throw InputError("allocator", too_many);
  if (proposals.plans.empty()) proposals.reason = reason_of_no_shape(problem);
  return proposals;
}

}  // namespace isobar::allocators

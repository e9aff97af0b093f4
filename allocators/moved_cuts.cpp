#include "allocators/moved_cuts.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/fast_random.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/search_clock.hpp"
#include "core/check/tier_memory.hpp"
#include "core/compute/as_trained.hpp"
#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "schedules/lowering/played_step.hpp"
#include "schedules/lowering/replicas.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr Seconds no_step(std::numeric_limits<double>::infinity());
/// Relative. Steps that differ by less are equal.
constexpr double rounding = 1e-9;
constexpr std::size_t moves_of_a_kick = 3;

/// The first layer of each stage, of the view's layers.
using Cuts = std::vector<std::size_t>;

SearchLimits with_plays(SearchLimits limits)
{
  if (!limits.budget && !limits.time_limit) limits.budget = plays_of_moved_cuts;
  return limits;
}

class MovedCuts {
 public:
  explicit MovedCuts(const HybridProblem& problem)
      : problem_(problem),
        start_(problem.limits.start_plan.value()),
        chain_(schedules::stages_of_pipeline(start_)),
        rules_(problem.limits.rules, problem.workload, problem.cluster),
        clock_(with_plays(problem.limits)),
        random_(problem.limits.seed),
        are_layers_parts_(has_shards(start_) || has_exchanges(start_))
  {
  }

  Proposals proposals()
  {
    std::vector<std::size_t> first_layers;
    for (const auto& [first, last] : chain_) first_layers.push_back(start_.stages[first].first_layer);
    const auto start = nearest_cuts(problem_.view, first_layers);
    if (!start) {
      return {{},
              why_too_many_stages(problem_.limits.rules.value(), chain_.size(), problem_.view.workload.layers.size())};
    }
    Cuts best = descended(*start);
    while (!is_over_ && chain_.size() > 1) {
      is_over_ = !clock_.spend();  // where all neighbours are known
      Cuts next = best;
      for (std::size_t i = 0; i < moves_of_a_kick; ++i)
        move(next, random_.below(next.size()), random_.below(next.size()));
      next = descended(std::move(next));
      if (step_of(next) < step_of(best) * (1 - rounding)) best = std::move(next);
    }
    Proposals proposals;
    proposals.is_cut_short = problem_.limits.time_limit && clock_.is_over();
    proposals.plans.push_back(plan_with(best));
    if (best != *start) proposals.plans.push_back(plan_with(*start));
    return proposals;
  }

 private:
  std::size_t end_of(const Cuts& cuts, std::size_t stage) const
  {
    return stage + 1 < cuts.size() ? cuts[stage + 1] : problem_.view.workload.layers.size();
  }

  /// Gives a layer of stage `from` to stage `to`, and those between pass one on. False if `from` has no other.
  bool move(Cuts& cuts, std::size_t from, std::size_t to) const
  {
    if (from == to || end_of(cuts, from) - cuts[from] == 1) return false;
    for (std::size_t stage = std::min(from, to) + 1; stage <= std::max(from, to); ++stage) {
      from < to ? --cuts[stage] : ++cuts[stage];
    }
    return true;
  }

  Plan plan_with(const Cuts& cuts) const
  {
    Plan plan;
    plan.goal = problem_.goal;
    plan.sync = start_.sync;
    plan.transfers = start_.transfers;
    plan.system = start_.system;
    plan.samples = start_.samples;
    plan.context = start_.context;
    plan.experts = start_.experts;
    plan.recompute = start_.recompute;
    for (std::size_t stage = 0; stage < cuts.size(); ++stage) {
      const auto [first, last] = chain_[stage];
      const StagePlacement layers{0, problem_.view.first_layer[cuts[stage]],
                                  problem_.view.first_layer[end_of(cuts, stage)] - 1};
      const std::size_t parts = are_layers_parts_ ? layers.last_layer - layers.first_layer + 1 : last - first + 1;
      for (const auto& part : parts_of(layers, parts)) {
        Stage& made = plan.stages.emplace_back(start_.stages[first]);
        made.first_layer = part.first_layer;
        made.last_layer = part.last_layer;
        made.starts_chunk = made.starts_chunk && part.first_layer == layers.first_layer;
      }
    }
    return plan;
  }

  /// The played step; infinite if the plan exceeds a memory, breaks the rules or cannot be played.
  Seconds step_of(const Cuts& cuts)
  {
    const auto [known, is_new] = steps_.try_emplace(cuts, no_step);
    if (!is_new) return known->second;
    is_over_ = is_over_ || !clock_.spend() || clock_.is_over();
    const Plan plan = plan_with(cuts);
    if (!rules_.takes(plan, no_step)) return no_step;
    const Cluster& cluster = problem_.cluster;
    const compute::AsTrained trained(plan, problem_.workload, cluster);
    const auto counted = counted_step(plan);
    try {
      const PlayedProgram played =
          schedules::play_acting(plan, trained.workload(), trained.cluster(), counted.played());
      const auto memories = tier_memories(plan, cluster, played);
      const bool fits = std::all_of(memories.begin(), memories.end(), [](const TierMemory& memory) {
        return memory.need <= memory.has * (1 + tolerance);
      });
      if (fits) known->second = played.periods[counted.before].step_time;
    } catch (const InputError&) {  // an order that waits for itself with these stages
    }
    return known->second;
  }

  /// The time of a micro-batch through each stage, on the slowest of its devices.
  std::vector<Seconds> times_of(const Cuts& cuts) const
  {
    const Plan plan = plan_with(cuts);
    const compute::AsTrained trained(plan, problem_.workload, problem_.cluster);
    const CostModel cost(trained.workload(), trained.cluster());
    std::vector<Seconds> times;
    for (std::size_t stage = 0; stage < cuts.size(); ++stage) {
      const std::size_t first = problem_.view.first_layer[cuts[stage]];
      const std::size_t last = problem_.view.first_layer[end_of(cuts, stage)] - 1;
      Seconds& slowest = times.emplace_back();
      for (const auto& replica : start_.stages[chain_[stage].first].replicas) {
        for (const auto& shard : replica.shards) {
          const auto device = trained.cluster().device_index(shard.device).value();
          slowest = std::max(slowest, cost.compute_time(device, first, last));
        }
      }
    }
    return times;
  }

  /// Takes moves that make the step shorter, those from long stages to short ones first, until there is none.
  Cuts descended(Cuts cuts)
  {
    Seconds least = step_of(cuts);
    bool is_better = true;
    while (is_better && !is_over_) {
      is_better = false;
      const auto times = times_of(cuts);
      std::vector<std::pair<std::size_t, std::size_t>> moves;
      for (std::size_t from = 0; from < cuts.size(); ++from) {
        for (std::size_t to = 0; to < cuts.size(); ++to) moves.emplace_back(from, to);
      }
      std::stable_sort(moves.begin(), moves.end(), [&](const auto& a, const auto& b) {
        return times[a.first] - times[a.second] > times[b.first] - times[b.second];
      });
      for (const auto& [from, to] : moves) {
        if (is_over_) break;
        Cuts next = cuts;
        if (!move(next, from, to)) continue;
        const Seconds step = step_of(next);
        if (step >= least * (1 - rounding)) continue;
        least = step;
        cuts = std::move(next);
        is_better = true;
        break;
      }
    }
    return cuts;
  }

  const HybridProblem& problem_;
  const Plan& start_;
  std::vector<std::pair<std::size_t, std::size_t>> chain_;  // of each stage, its first and last of the plan
  RuleCheck rules_;
  SearchClock clock_;
  FastRandom random_;
  bool are_layers_parts_;
  bool is_over_ = false;
  std::map<Cuts, Seconds> steps_;
};

}  // namespace

Proposals propose_moved_cuts(const HybridProblem& problem)
{
  return MovedCuts(problem).proposals();
}

}  // namespace isobar::allocators

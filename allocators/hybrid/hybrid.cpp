#include "allocators/hybrid/hybrid.hpp"

#include "allocators/chain/local_search.hpp"
#include "allocators/exact/exact.hpp"
#include "allocators/hybrid/enumeration.hpp"
#include "allocators/hybrid/pipeline_steps.hpp"
#include "allocators/hybrid/piper.hpp"
#include "allocators/hybrid/shape_search.hpp"
#include "allocators/planners/amp.hpp"
#include "allocators/planners/dtfm.hpp"
#include "allocators/planners/grid.hpp"
#include "allocators/planners/grid_stages.hpp"
#include "allocators/planners/metis.hpp"
#include "allocators/played_plan.hpp"
#include "allocators/replica_costs.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr std::uint64_t moves_of_annealing = 12'000;
/// In steps. A pipeline of many has a small part in the step, and so have changes of it.
constexpr double cool = 0.002;
constexpr double hot = 0.05;
constexpr Seconds never(std::numeric_limits<double>::infinity());
constexpr std::size_t most_shaped_plans = 16;
constexpr std::size_t most_improved = 3;
/// Plans of which the one with the least predicted step is chosen, if one is wanted, and the most tasks to play them.
constexpr std::size_t most_compared = 16;
constexpr double most_compared_tasks = 5e4;
/// Relative. Steps that differ by less are equal.
constexpr double rounding = 1e-9;
/// Limits of a phase's plays, in tasks: a task is a pass of a stage for a micro-batch.
constexpr double most_played_tasks = 2e5;
constexpr double most_improving_tasks = 3e4;
constexpr std::size_t least_plays = 6;
constexpr double most_enumerated_tasks = 2e6;
/// Shapes with an estimate that exceeds the least step by more are not played.
constexpr double largest_error = 1.25;
/// Each of more pipelines has a small part in the step.
constexpr std::size_t most_improved_pipelines = 16;
/// The most layers x devices for which a chain is searched: of few kinds, where shapes have chains too, or of many; and
/// by `exact`, which takes seconds, if plans are simulated anyway.
constexpr std::size_t most_chain_pairs = 1'000;
constexpr std::size_t most_unlike_chain_pairs = 50'000;
constexpr std::size_t most_exact_pairs = 20'000;
constexpr std::uint64_t moves_of_chain = 2'000;
/// A part of those that Metis tries, unless plans are simulated.
constexpr std::uint64_t strategies_of_metis = 5'000;

/// A set of pipelines, how they add up gradients, and in how many parts the layers between two cuts do so.
struct Candidate {
  std::vector<Pipeline> pipelines;
  Sync sync;
  std::size_t parts = 1;
};

class Hybrids {
 public:
  explicit Hybrids(const HybridProblem& problem)
      : problem_(problem),
        schedule_(require_schedule_of_replicas(problem.goal, "hybrid")),
        cost_(problem.workload, problem.cluster),
        chain_cost_(problem.view.workload, problem.cluster),
        steps_(cost_),
        kinds_(kinds_of(chain_cost_)),
        clock_(problem.limits),
        rules_(problem.limits.rules, problem.workload, problem.cluster),
        most_replicas_(problem.limits.most_replicas.value_or(problem.cluster.devices.size())),
        most_tensor_(problem.limits.most_tensor.value_or(most_shards))
  {
  }

  Proposals proposals()
  {
    add_starts();
    if (schedule_.folding == schedules::Folding::OneEach) {
      search(Links::Alone);
      if (problem_.limits.candidates > 1) search(Links::Shared);
      improve();
    }
    if (problem_.limits.candidates == 1) keep_waiting();
    if (schedule_.folding == schedules::Folding::OneEach) enumerate();
    Proposals proposals{{}, unfit_.empty() ? reason_ : "", clock_.is_over()};
    if (best_.empty()) {
      proposals.plans = std::move(unfit_);
      return proposals;
    }
    const std::size_t most = problem_.limits.candidates;
    if (most == 1) {
      proposals.plans.push_back(chosen());
      return proposals;
    }
    proposals.plans = std::move(starts_);  // to be simulated: some of each
    if (proposals.plans.size() > most) proposals.plans.resize(most);
    const std::size_t of_shared = (most - proposals.plans.size()) / 2;
    for (std::size_t i = 0; i < shared_.size() && i < of_shared; ++i) {
      proposals.plans.push_back(std::move(shared_[i].second));
    }
    for (auto& [step, plan] : best_) {
      if (proposals.plans.size() < most) proposals.plans.push_back(std::move(plan));
    }
    return proposals;
  }

 private:
  /// Begins a phase of the search.
  void allow(double tasks)
  {
    most_tasks_ = tasks_ + tasks;
    plays_ = 0;
  }
  /// Whether the phase has played enough.
  bool is_over() const { return clock_.is_over() || (tasks_ > most_tasks_ && plays_ >= least_plays); }

  /// Keeps the best plan of each other planner.
  void add_starts()
  {
    HybridProblem unlimited = problem_;
    unlimited.limits.budget.reset();
    add_start(propose_grids(unlimited));
    if (schedule_.folding != schedules::Folding::OneEach) return;
    add_start(propose_by_amp(unlimited));
    if (problem_.limits.candidates == 1) unlimited.limits.budget = strategies_of_metis;
    add_start(propose_by_metis(unlimited));
    add_pipelines_of_a_kind();
    add_chain();
  }

  /// Piper's pipeline on the kind of devices that has the most speed in all.
  void add_pipelines_of_a_kind()
  {
    const auto speed = [&](const DeviceKind& kind) {
      return static_cast<double>(kind.devices.size()) * chain_cost_.speed(kind.devices.front());
    };
    const auto most = std::max_element(kinds_.begin(), kinds_.end(),
                                       [&](const auto& a, const auto& b) { return speed(a) < speed(b); });
    if (auto plan = propose_by_piper(problem_, *most)) add_start({{std::move(*plan)}});
  }

  /// Keeps the best of a planner's proposals; if one plan is wanted, they wait until the search has a better one.
  void add_start(Proposals proposals)
  {
    if (reason_.empty()) reason_ = std::move(proposals.reason);
    std::multimap<Seconds, Plan> by_bound;
    for (auto& plan : proposals.plans) {
      if (!is_within_limits(plan)) continue;
      plan.recompute = problem_.workload.recompute;
      plan.data_server = problem_.cluster.data_server;
      if (!rules_.takes(plan, never)) {
        unfit_.push_back(std::move(plan));  // which is then the reason
        continue;
      }
      const auto known = steps_.step_of(plan);
      const Seconds bound = known ? known->step : ReplicaCosts(plan, schedules::orders_of(plan), cost_).least_step();
      by_bound.emplace(bound, std::move(plan));
    }
    if (problem_.limits.candidates == 1) {
      waiting_.merge(by_bound);
    } else {
      keep_start(by_bound);
    }
  }

  /// Keeps plans of a planner in the order of their least possible steps, while these are below the least predicted
  /// step of its plans, and the plan with that step as a start.
  void keep_start(std::multimap<Seconds, Plan>& by_bound)
  {
    std::optional<std::pair<Seconds, Plan>> best;
    for (auto& [bound, plan] : by_bound) {
      if (best && (bound >= best->first || clock_.is_over())) break;
      const auto step = step_of(plan);
      if (!step) {
        unfit_.push_back(std::move(plan));
        continue;
      }
      keep(*step, plan);
      const auto known = steps_.step_of(plan);
      const auto predicted = known && known->is_exact ? played_step_of(plan) : step;
      if (predicted && (!best || *predicted < best->first)) best.emplace(*predicted, std::move(plan));
    }
    if (best) starts_.push_back(std::move(best->second));
  }

  /// Keeps plans of other planners in the order of their least possible steps, while these are below the least step.
  void keep_waiting()
  {
    for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
      if (least_ < never && (waiting->first >= least_ || clock_.is_over())) break;
      const auto step = step_of(waiting->second);
      if (step) {
        keep(*step, waiting->second);
        ++waiting;
      } else {
        unfit_.push_back(std::move(waiting->second));
        waiting = waiting_.erase(waiting);
      }
    }
  }

  /// The plan with the least predicted step, in which flows share links: of the plans kept and those of other planners
  /// and, where these flows take longer than alone, of a search with shared links.
  Plan chosen()
  {
    Predicted best = {never, best_.begin()->second};
    const auto second = std::next(best_.begin());
    allow(never.value);  // other planners have limits of their own
    compare({best_.begin(), second}, best);
    compare(waiting_, best);
    allow(most_compared_tasks);
    compare({second, best_.end()}, best);
    const bool is_contended = best.step > least_ * (1 + rounding);
    if (!is_contended || schedule_.folding != schedules::Folding::OneEach) return std::move(best.plan);
    search(Links::Shared);
    allow(most_compared_tasks);
    compare({shared_.begin(), shared_.end()}, best);
    return std::move(best.plan);
  }

  struct Predicted {
    Seconds step;
    Plan plan;
  };

  /// Puts the plan with the least predicted step in the place of `best`, if it is better. Plays plans in the order of
  /// their steps without contention, while these are below that of `best`.
  void compare(const std::multimap<Seconds, Plan>& by_step, Predicted& best)
  {
    for (const auto& [least, plan] : by_step) {
      const bool is_over = clock_.is_over() || tasks_ > most_tasks_;
      if (least >= best.step * (1 - rounding) || (best.step < never && is_over)) break;
      const auto step = played_step_of(plan);
      if (step && *step < best.step) best = {*step, plan};
    }
  }

  bool is_within_limits(const Plan& plan) const
  {
    return std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
      return stage.replicas.size() <= most_replicas_ && stage.replicas.front().shards.size() <= most_tensor_;
    });
  }

  /// A chain of `local-search`, where that is quick, or of a short search by `exact`, which takes seconds.
  void add_chain()
  {
    if (!chain_schedule(problem_.goal.schedule)) return;
    const std::size_t pairs = chain_cost_.layers() * chain_cost_.devices();
    const bool is_exact = problem_.limits.candidates > 1 && pairs <= most_exact_pairs;
    const bool are_unlike = 2 * kinds_.size() > chain_cost_.devices();
    if (!is_exact && pairs > (are_unlike ? most_unlike_chain_pairs : most_chain_pairs)) return;
    SearchLimits limits = problem_.limits;
    limits.budget = is_exact ? 1 : moves_of_chain;
    limits.candidates = 1;
    const Problem problem{chain_cost_, problem_.goal, limits};
    const Placement placement = is_exact ? place_exactly(problem) : place_by_local_search(problem);
    if (placement.stages.empty()) return;
    Pipeline pipeline{problem_.goal.microbatches, {}};
    for (const auto& stage : placement.stages) {
      pipeline.stages.push_back({{stage.device}, stage.first_layer, stage.last_layer});
    }
    allow(most_played_tasks);
    if (auto best = keep_candidates({pipeline})) starts_.push_back(std::move(best->second));
  }

  /// Keeps the plans of the shapes with the least estimates.
  void search(Links links)
  {
    allow(most_played_tasks);
    const ShapeCosts shapes(problem_, most_tensor_, links);
    const std::uint64_t moves = problem_.limits.candidates > 1 ? moves_of_annealing / 2 : moves_of_annealing;
    // Plans that a simulation chooses from should differ.
    const double heat = problem_.limits.candidates > 1 ? hot : cool;
    const SearchedShapes searched = problem_.limits.rules ? SearchedShapes::Uniform : SearchedShapes::Any;
    const auto plans =
        search_shapes(shapes, searched, most_replicas_, problem_.limits.seed, moves, heat, most_shaped_plans, clock_);
    for (const auto& plan : plans) {
      const Seconds least = links == Links::Alone ? least_ : plans.front().estimate.step;
      if (plan.estimate.step > largest_error * least) continue;
      for (const auto layout : {Layout::StagesApart, Layout::ReplicasApart}) {
        auto best = keep_candidates(pipelines_of(plan, shapes.kinds(), layout));
        if (links == Links::Shared && best) shared_.push_back(std::move(*best));
      }
    }
  }

  /// Tries every set of pipelines where there are few.
  void enumerate()
  {
    if (!are_few_pipelines(chain_cost_.layers(), chain_cost_.devices(), problem_.goal.microbatches)) return;
    const PipelinePrice price = [&](const std::vector<Pipeline>& pipelines) -> std::optional<Seconds> {
      const auto best = best_plan_of({pipelines, {}});
      return best ? std::optional(best->first) : std::nullopt;
    };
    allow(most_enumerated_tasks);
    const auto stop = [&] { return is_over() || !clock_.spend(); };
    const auto best = enumerate_pipelines(problem_, most_replicas_, least_, price, stop);
    if (best) keep({*best, {}});
  }

  /// The plans of a candidate: with the schedule's own warm-up and, if that is to be chosen, with the one that hides
  /// delays.
  std::vector<Plan> plans_of(const Candidate& candidate) const
  {
    Plan plan;
    plan.goal = problem_.goal;
    plan.recompute = problem_.workload.recompute;
    plan.data_server = problem_.cluster.data_server;
    plan.sync = candidate.sync;
    plan.stages = stages_of(candidate.pipelines, problem_.view, cost_, candidate.parts);
    if (!chooses_warm_up(plan.goal)) return {std::move(plan)};
    plan.goal.schedule.numbers.erase(warm_up_key);
    std::vector<Plan> plans = {plan};
    std::map<std::string, std::uint64_t> by_device;
    for (const auto& pipeline : candidate.pipelines) {
      std::vector<StagePlacement> stages;
      for (const auto& stage : pipeline.stages) {
        stages.push_back({stage.devices.front(), stage.first_layer, stage.last_layer});
      }
      Goal of_pipeline = plan.goal;
      of_pipeline.microbatches = pipeline.microbatches;
      const auto chosen = chosen_warm_up(schedule_, chain_cost_, stages, of_pipeline);
      if (!chosen) return plans;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        for (const std::size_t device : pipeline.stages[i].devices) {
          by_device[problem_.cluster.devices[device].name] = (*chosen)[i];
        }
      }
    }
    auto& numbers = plan.goal.schedule.numbers[warm_up_key];
    for (const auto& device : devices_of(plan)) numbers.push_back(by_device.at(device));
    plans.push_back(std::move(plan));
    return plans;
  }

  /// The step of a plan: of pipelines side by side without contention, of others as predicted. None if it does not fit
  /// into memory, if it breaks the rules, if ranks would wait for each other's collectives, or if it surely is not
  /// below `limit`.
  std::optional<Seconds> step_of(const Plan& plan, Seconds limit = never)
  {
    ++plays_;
    if (!can_divide(problem_.workload, plan) || !rules_.takes(plan, never)) return std::nullopt;
    if (const auto known = steps_.step_of(plan)) {
      tasks_ += static_cast<double>(plan.stages.size() * plan.stages.front().replicas.size());
      if (!known->fits || known->step >= limit) return std::nullopt;
      if (known->is_exact) return known->step;
    }
    return played_step_of(plan);
  }

  /// The predicted step of a plan; none if it does not fit into memory, or if it cannot be played.
  std::optional<Seconds> played_step_of(const Plan& plan)
  {
    tasks_ += static_cast<double>(problem_.goal.microbatches * plan.stages.size());
    Plan priced = plan;
    priced.recompute = problem_.workload.recompute;
    priced.data_server = problem_.cluster.data_server;
    try {
      if (price(priced, cost_)) return std::nullopt;
      return predicted_step(priced, cost_);
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  /// The plan of a candidate with the least predicted step; none if none fits into memory, or is below `limit`.
  std::optional<std::pair<Seconds, Plan>> best_plan_of(const Candidate& candidate, Seconds limit = never)
  {
    std::optional<std::pair<Seconds, Plan>> best;
    for (auto& plan : plans_of(candidate)) {
      const auto step = step_of(plan, limit);
      if (step && (!best || *step < best->first)) best.emplace(*step, std::move(plan));
    }
    return best;
  }

  void keep(Seconds step, Plan plan)
  {
    least_ = std::min(least_, step);
    best_.emplace(step, std::move(plan));  // one of each step: others mostly differ in the names of devices
    if (best_.size() > std::max(problem_.limits.candidates, most_compared)) best_.erase(std::prev(best_.end()));
  }

  /// Keeps the best plan of a candidate, and the candidate if it is among those to improve.
  std::optional<std::pair<Seconds, Plan>> keep(Candidate candidate, Seconds limit = never)
  {
    auto best = best_plan_of(candidate, limit);
    if (!best) return std::nullopt;
    keep(best->first, best->second);
    to_improve_.emplace(best->first, std::move(candidate));
    if (to_improve_.size() > most_improved) to_improve_.erase(std::prev(to_improve_.end()));
    return best;
  }

  /// Keeps pipelines with each way to add up gradients, and returns the best of these plans.
  std::optional<std::pair<Seconds, Plan>> keep_candidates(const std::vector<Pipeline>& pipelines)
  {
    if (is_over() && !best_.empty()) return std::nullopt;
    const auto [known, is_new] = kept_.try_emplace(pipelines);
    std::optional<std::pair<Seconds, Plan>>& best = known->second;
    if (!is_new) return best;
    for (const auto& [sync, parts] : ways_to_sync(pipelines)) {
      if (best && sync.sharded == Sharding::Gradients) continue;  // only saves memory
      const bool needs_one = best && problem_.limits.candidates == 1;
      auto found = keep({pipelines, sync, parts}, needs_one ? best->first : never);
      if (found && (!best || found->first < best->first)) best = std::move(found);
    }
    return best;
  }

  /// Syncs, and the parts of each stage that do so one after another.
  std::vector<std::pair<Sync, std::size_t>> ways_to_sync(const std::vector<Pipeline>& pipelines) const
  {
    if (pipelines.size() == 1) return {{{}, 1}};
    Plan plan;
    plan.stages = stages_of(pipelines, problem_.view, cost_);
    const auto& stages = pipelines.front().stages;
    const bool has_shards = plan.stages.size() > 1 && plan.stages.front().replicas.front().shards.size() > 1;
    const bool has_same_cuts = std::all_of(pipelines.begin(), pipelines.end(), [&](const Pipeline& pipeline) {
      return std::equal(pipeline.stages.begin(), pipeline.stages.end(), stages.begin(), stages.end(),
                        [](const auto& a, const auto& b) { return a.first_layer == b.first_layer; });
    });
    std::vector<Algorithm> algorithms = {Algorithm::Ring};
    if (crosses_sites(plan)) algorithms.push_back(Algorithm::Hierarchical);
    const std::size_t parts = has_shards ? 1 : parts_of_divided_stage;
    std::vector<std::pair<Sync, std::size_t>> ways;
    for (const Algorithm algorithm : algorithms) {
      ways.push_back({{algorithm}, 1});
      if (has_shards || !has_same_cuts) ways.push_back({{algorithm, Sharding::None, gradient_bucket}, 1});
      ways.push_back({{algorithm, Sharding::Optimizer}, 1});
      if (!has_same_cuts) {
        ways.push_back({{algorithm, Sharding::Gradients}, 1});
        continue;
      }
      if (parts > 1) ways.push_back({{algorithm, Sharding::Optimizer}, parts});
      ways.push_back({{algorithm, Sharding::Parameters}, parts});
    }
    return ways;
  }

  /// Improves the best candidates by small changes of a cut or of two shares, as long as these help.
  void improve()
  {
    if (!to_improve_.empty() && to_improve_.begin()->second.pipelines.size() > most_improved_pipelines) return;
    allow(most_improving_tasks);
    const auto starts = to_improve_;
    for (const auto& [first_step, start] : starts) {
      Candidate candidate = start;
      Seconds step = first_step;
      bool is_better = false;
      do {
        is_better = false;
        for (auto& next : neighbours_of(candidate)) {
          if (is_over() || !clock_.spend()) break;
          const auto found = best_plan_of(next, step);
          if (!found || found->first >= step * (1 - rounding)) continue;
          candidate = std::move(next);
          step = found->first;
          is_better = true;
          break;
        }
      } while (is_better);
      if (step < first_step) keep(candidate);
    }
  }

  static std::vector<Candidate> neighbours_of(const Candidate& candidate)
  {
    std::vector<Candidate> neighbours;
    const auto& pipelines = candidate.pipelines;
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      for (std::size_t j = 0; j < pipelines.size(); ++j) {
        if (i == j || pipelines[i].microbatches == 1) continue;
        neighbours.push_back(candidate);
        --neighbours.back().pipelines[i].microbatches;
        ++neighbours.back().pipelines[j].microbatches;
      }
      for (std::size_t stage = 0; stage + 1 < pipelines[i].stages.size(); ++stage) {
        const auto& left = pipelines[i].stages[stage];
        const auto& right = pipelines[i].stages[stage + 1];
        for (const bool moves_left : {true, false}) {
          const PipelineStage& shrinks = moves_left ? left : right;
          if (shrinks.first_layer == shrinks.last_layer) continue;
          neighbours.push_back(candidate);
          auto& stages = neighbours.back().pipelines[i].stages;
          stages[stage].last_layer += moves_left ? std::size_t{0} - 1 : 1;
          stages[stage + 1].first_layer = stages[stage].last_layer + 1;
        }
      }
    }
    return neighbours;
  }

  const HybridProblem& problem_;
  const schedules::Schedule& schedule_;
  CostModel cost_;
  CostModel chain_cost_;
  PipelineSteps steps_;
  std::vector<DeviceKind> kinds_;
  SearchClock clock_;
  RuleCheck rules_;
  std::size_t most_replicas_;
  std::size_t most_tensor_;
  double tasks_ = 0;       // played
  double most_tasks_ = 0;  // in this phase
  std::size_t plays_ = 0;  // likewise
  Seconds least_ = never;
  std::map<Seconds, Plan> best_;
  std::vector<Plan> starts_;                      // the best of each other planner
  std::multimap<Seconds, Plan> waiting_;          // of other planners, by their bounds
  std::vector<std::pair<Seconds, Plan>> shared_;  // the best where pipelines share links, by their estimates
  std::vector<Plan> unfit_;                       // do not fit into memory
  std::string reason_;                            // if nothing was proposed
  std::map<std::vector<Pipeline>, std::optional<std::pair<Seconds, Plan>>> kept_;  // and their best plans
  std::multimap<Seconds, Candidate> to_improve_;
};

}  // namespace

namespace {

/// Grids of both kinds, within the limits of degrees.
Proposals propose_grids_of_groups(const HybridProblem& problem)
{
  Proposals proposals = propose_grids(problem);
  if (proposals.plans.empty()) return proposals;
  auto balanced = propose_balanced_grids(problem);
  std::move(balanced.plans.begin(), balanced.plans.end(), std::back_inserter(proposals.plans));
  const std::uint64_t most_replicas = problem.limits.most_replicas.value_or(problem.cluster.devices.size());
  const std::uint64_t most_tensor = problem.limits.most_tensor.value_or(most_shards);
  std::erase_if(proposals.plans, [&](const Plan& plan) {
    const auto& replicas = plan.stages.front().replicas;
    return replicas.size() > most_replicas || replicas.front().shards.size() > most_tensor;
  });
  if (proposals.plans.empty()) {
    std::string groups;
    if (problem.workload.context.divides()) groups += " of sequences in " + text_of(problem.workload.context);
    if (problem.workload.experts.divides()) groups += " with experts in " + text_of(problem.workload.experts);
    proposals.reason = fmt::format("no grid{} has at most {} of at most {}", groups, counted(most_replicas, "replica"),
                                   counted(most_tensor, "shard"));
  }
  return proposals;
}

}  // namespace

Proposals propose_hybrids(const HybridProblem& problem)
{
  if (problem.goal.objective == Objective::DtFm) return propose_by_dtfm(problem);
  if (has_exchanges(problem.workload)) return propose_grids_of_groups(problem);
  return Hybrids(problem).proposals();
}

}  // namespace isobar::allocators

#include "allocators/registry.hpp"
#include "allocators/allocator.hpp"
#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/bounds/load_bound.hpp"
#include "allocators/chain/chain_dp.hpp"
#include "allocators/chain/local_search.hpp"
#include "allocators/exact/exact.hpp"
#include "allocators/exact/step_bound.hpp"
#include "allocators/external.hpp"
#include "allocators/hybrid/hybrid.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/moved_cuts.hpp"
#include "allocators/other_schedules.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/planners/amp.hpp"
#include "allocators/planners/dtfm.hpp"
#include "allocators/planners/dtfm_costs.hpp"
#include "allocators/planners/dtfm_exact.hpp"
#include "allocators/planners/grid.hpp"
#include "allocators/planners/metis.hpp"
#include "allocators/played_plan.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/sky/even.hpp"
#include "allocators/sky/milp.hpp"
#include "allocators/sky/sky_dynamic.hpp"
#include "allocators/spmd/proposals.hpp"
#include "allocators/tiers/offload.hpp"
#include "allocators/tiers/published.hpp"
#include "allocators/tiers/window.hpp"
#include "allocators/variants.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "core/compute/as_trained.hpp"
#include "core/costs/step_recurrence.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/model/routing.hpp"
#include "core/model/sharding.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/tied_copies.hpp"
#include "schedules/lowering/played_step.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::string_view external_prefix = "exec:";

/// True when a plan gets a bound by multipliers, which takes up to a second or two: its time grows with the square of
/// the layers.
bool gets_certified_bound(const CostModel& chain_cost)
{
  constexpr std::size_t most_layers = 10'000;
  constexpr std::size_t most_pairs = 2'000'000;  // layers x devices
  return chain_cost.layers() <= most_layers && chain_cost.layers() * chain_cost.devices() <= most_pairs;
}

const Allocator* find_allocator(std::string_view name)
{
  const auto& all = allocators();
  const auto allocator =
      std::find_if(all.begin(), all.end(), [&](const Allocator& known) { return known.name == name; });
  return allocator == all.end() ? nullptr : &*allocator;
}

bool is_external(std::string_view name)
{
  return name.starts_with(external_prefix);
}

bool takes(const Allocator& allocator, std::size_t layers, std::size_t devices)
{
  return devices <= allocator.most_devices && layers * devices <= allocator.most_pairs;
}

/// @throws InputError for a problem that is too large for an allocator; it names the allocators that take it.
void require_size(const Allocator& allocator, std::size_t layers, std::size_t devices)
{
  if (takes(allocator, layers, devices)) return;
  std::vector<std::string_view> others;
  for (const auto& other : allocators()) {
    if (takes(other, layers, devices) && !other.uses_machines && !other.divides_operators) others.push_back(other.name);
  }
  const auto too_large =
      devices > allocator.most_devices
          ? fmt::format("at most {} devices, and the platform has {}", allocator.most_devices, devices)
          : fmt::format("at most {} pairs of a layer and a device, and this problem has {}", allocator.most_pairs,
                        layers * devices);
  throw InputError("allocator", fmt::format("{} takes {}; use {}, or leave devices out with --without", allocator.name,
                                            too_large, fmt::join(others, ", ")));
}

/// Writes the cost model's claims on the placement, and how good it is. Returns the proven bound: it is above the
/// objective only when the placement violates what the bound assumes, its memory.
Seconds make_claims(Plan& plan, const Placement& placement, const std::vector<StagePlacement>& stages,
                    const CostModel& cost, const CostModel& chain_cost)
{
  const auto evaluation = cost.evaluate(stages, plan.goal);
  plan.objective = evaluation.objective;
  plan.step_bound = evaluation.step_bound;
  plan.predicted = Predicted{.step_time = step_time_by_recurrence(cost, stages, plan.goal),
                             .bottleneck = evaluation.bottleneck,
                             .sequential = evaluation.sequential,
                             .pipeline = evaluation.pipeline};
  plan.stages = plan_stages(cost, stages);
  play_chain(plan, cost.workload(), cost.cluster());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    plan.predicted->peak_memory[plan.stages[i].device()] =
        stage_memory(cost, plan.goal, stages[i], stages.size() - 1 - i);
  }

  // The best bound: the allocator's own, or a quick one for any plan.
  Bound bound = objective_bound(cost, plan.goal);
  if (placement.objective_bound) {
    if (*placement.objective_bound > bound.value) bound = {*placement.objective_bound, placement.certificate};
  } else if (gets_certified_bound(chain_cost)) {
    Bound certified = plan.goal.objective == Objective::Step
                          ? quick_step_bound(chain_cost, plan.goal, placement.stages)
                          : bound_without_transfers(chain_cost, plan.goal, placement.stages);
    if (certified.value > bound.value) bound = std::move(certified);
  }
  plan.objective_bound = std::min(bound.value, evaluation.objective);
  plan.certificate = bound.certificate;
  // Searches count copies of a matrix in memory, which certificates know nothing of.
  const auto& layers = cost.workload().layers;
  const bool has_ties =
      std::any_of(layers.begin(), layers.end(), [](const Layer& layer) { return layer.tied_to.has_value(); });
  if (has_ties && !faults_of_certificate(plan, cost.workload(), cost.cluster()).empty()) {
    bound = objective_bound(cost, plan.goal);
    plan.objective_bound = std::min(bound.value, evaluation.objective);
    plan.certificate = bound.certificate;
    if (plan.outcome == Outcome::Optimal) plan.outcome = Outcome::Feasible;
  }
  // Whichever allocator found it: a plan that meets its bound is optimal, and no other is.
  const bool meets_bound = *plan.objective_bound >= evaluation.objective * (1 - tolerance);
  if (meets_bound) plan.outcome = Outcome::Optimal;
  ensure(plan.outcome != Outcome::Optimal || meets_bound, "a plan is called optimal and its bound does not prove it");
  return bound.value;
}

void check(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  if (plan.routing && routing_of(workload) != plan.routing) {
    return check(plan, with_routing(workload, *plan.routing, workload.micro_batch), cluster);
  }
  auto faults = faults_of(plan, workload, cluster);
  if (faults.empty() && !plan.stages.empty() && !is_chain(plan)) {
    const compute::AsTrained trained(plan, workload, cluster);
    const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
    const auto folded =
        schedules::play_folded(plan, trained.workload(), trained.cluster(), *program, counted_step(plan).played());
    faults = faults_of_played(plan, trained.workload(), trained.cluster(), *program, folded ? &*folded : nullptr);
  }
  if (faults.empty()) return;
  for (auto& fault : faults) fault = fmt::format("{}: {}", plan.allocator, fault);
  if (is_external(plan.allocator)) throw InputError(faults);
  throw std::logic_error(faults.front());
}

/// Prices what an allocator proposes, drops what exceeds a memory, and keeps those with the least predicted step or,
/// for objective `dtfm`, the least objective; of plans for training software those that it takes. If none fits, the
/// reason is that of the one that lacks least. `clock` has run since the search began. `problem` has the whole chain.
std::vector<Plan> priced_plans(Proposals proposals, const HybridProblem& problem, SearchClock& clock)
{
  RuleCheck rules(problem.limits.rules, problem.workload, problem.cluster);
  const CostModel cost(problem.workload, problem.cluster);
  const CostModel chain_cost(problem.view.workload, problem.cluster);
  std::multimap<Seconds, Plan> by_step;
  std::exception_ptr fault;
  Bytes least_excess;  // of the proposals that do not fit
  const bool is_dtfm = problem.goal.objective == Objective::DtFm;
  bool is_cut_short = proposals.is_cut_short;
  const auto claim_chain = [&](Plan& plan) {
    const auto stages = placement_of(plan, problem.cluster);
    Placement placement;
    placement.stages = over_chain_of(problem.view, stages, "plan");
    make_claims(plan, placement, stages, cost, chain_cost);
  };
  for (auto& plan : proposals.plans) {
    if (!by_step.empty() && (clock.is_over() || !clock.spend())) {
      is_cut_short = true;
      break;
    }
    plan.recompute = problem.workload.recompute;
    plan.context = problem.workload.context;
    plan.experts = problem.workload.experts;
    plan.data_server = problem.cluster.data_server;
    if (const auto fault_of_stage = fault_of_ties(problem.workload, plan)) {
      if (proposals.reason.empty()) proposals.reason = fault_of_stage->text;
      continue;
    }
    std::optional<Excess> excess;
    Seconds step;
    const Plan proposed = plan;
    plan.goal.objective = Objective::Step;  // also what plans for other objectives predict
    const auto price_with = [&](const CostModel& own) {
      excess = price(plan, own);
      if (!excess && !is_dtfm) step = predicted_step(plan, own);
    };
    try {
      if (plan.routing) {
        const Workload routed = with_routing(problem.workload, *plan.routing, problem.workload.micro_batch);
        price_with(CostModel(routed, problem.cluster));
      } else {
        price_with(cost);
      }
    } catch (const InputError&) {  // numbers of the schedule that are for another shape
      fault = std::current_exception();
      continue;
    }
    if (!excess && is_dtfm) {
      if (is_chain(plan)) claim_chain(plan);
      plan.goal = proposed.goal;
      plan.outcome = proposed.outcome;
      plan.objective_bound = proposed.objective_bound;
      plan.certificate = proposed.certificate;
      if (!claim_dtfm_cost(plan, problem.workload, problem.cluster)) {
        excess =
            Excess{"no plan has stages of as many devices each, which DT-FM's cost is for; use allocator dtfm", {}};
      }
    }
    if (!excess) {
      const Seconds rank = is_dtfm ? plan.objective.value() : step;
      by_step.emplace(rank, std::move(plan));
    } else if (proposals.reason.empty() || excess->size < least_excess) {
      proposals.reason = std::move(excess->reason);
      least_excess = excess->size;
    }
  }
  std::vector<Plan> plans;
  for (auto& [step, plan] : by_step) {
    if (plans.size() == problem.limits.candidates) break;
    if (rules.takes(plan, step)) plans.push_back(std::move(plan));
  }
  if (plans.empty()) {
    if (rules.has_refused()) proposals.reason = rules.reason();
    if (fault && proposals.reason.empty()) std::rethrow_exception(fault);
    Plan plan;
    plan.goal = problem.goal;
    plan.outcome = is_cut_short ? Outcome::TimedOut : Outcome::Infeasible;
    plan.reason = proposals.reason;
    plan.recompute = problem.workload.recompute;
    plan.context = problem.workload.context;
    plan.experts = problem.workload.experts;
    plan.data_server = problem.cluster.data_server;
    return {plan};
  }
  // These bounds count whole layers, of which devices may compute parts.
  if (!operator_graph_of(problem.workload)) raise_bounds(plans, problem.workload, problem.cluster);
  for (auto& plan : plans) {
    if (is_cut_short && plan.outcome != Outcome::Optimal) plan.outcome = Outcome::TimedOut;
    if (is_chain(plan) && !is_dtfm) claim_chain(plan);
  }
  return plans;
}

/// Whether two plans have as many replicas of the same stages. DT-FM's cost has bounds of such plans.
bool have_same_stages(const Plan& plan, const Plan& other)
{
  return std::equal(plan.stages.begin(), plan.stages.end(), other.stages.begin(), other.stages.end(),
                    [](const Stage& a, const Stage& b) {
                      return a.first_layer == b.first_layer && a.last_layer == b.last_layer &&
                             a.replicas.size() == b.replicas.size();
                    });
}

SearchLimits for_one_plan(SearchLimits limits)
{
  limits.candidates = 1;
  return limits;
}

/// @throws InputError for DT-FM's cost and an allocator that places chains; it names those that place replicas.
void require_replicas(const Goal& goal, const std::string& name, const Allocator* allocator)
{
  if (goal.objective != Objective::DtFm || (allocator != nullptr && allocator->propose != nullptr)) return;
  std::vector<std::string_view> others;
  for (const auto& other : allocators()) {
    if (other.propose != nullptr && !other.uses_machines && !other.divides_operators) others.push_back(other.name);
  }
  throw InputError("objective", fmt::format("dtfm is a cost of pipelines with replicas, which {} does not place; use "
                                            "allocator {}",
                                            shown(name), fmt::join(others, " or ")));
}

/// @throws InputError for layers that are operators, which others than an allocator for them take for layers that pass
/// all their outputs on, and for other layers where it needs operators.
void require_unit(const Workload& workload, const std::string& name, const Allocator* allocator)
{
  const bool divides = allocator != nullptr && allocator->divides_operators;
  if (operator_graph_of(workload).has_value() == divides) return;
  throw InputError("unit", divides
                               ? fmt::format("{} divides operators; write unit: operator in a workload of model moe, "
                                             "or --set unit=operator",
                                             name)
                               : fmt::format("operator, whose layers only {} divide; leave it out for {}",
                                             fmt::join(names_with(&Allocator::divides_operators), ", "), shown(name)));
}

/// Whether plans have the times, memory and rules of training software, which a chain's recurrence does not know.
bool has_training_system(const Workload& workload, const Goal& goal, const Allocator* allocator)
{
  const bool is_other = allocator != nullptr && (allocator->uses_machines || allocator->divides_operators);
  return workload.compute == ComputeModel::Operators && goal.objective == Objective::Step && !is_other;
}

/// A start whose stages begin where rules let them, as near as they can.
/// @throws InputError for more stages than that.
std::vector<StagePlacement> cut_by_rules(std::vector<StagePlacement> start, const std::optional<PlanRules>& rules,
                                         const ChainView& view)
{
  if (!rules || start.empty()) return start;
  std::vector<std::size_t> first_layers;
  for (const auto& stage : start) first_layers.push_back(stage.first_layer);
  const auto cuts = nearest_cuts(view, first_layers);
  if (!cuts) throw InputError("start", why_too_many_stages(*rules, start.size(), view.first_layer.size() - 1));
  for (std::size_t i = 0; i < start.size(); ++i) {
    start[i].first_layer = view.first_layer[(*cuts)[i]];
    if (i > 0) start[i - 1].last_layer = start[i].first_layer - 1;
  }
  return start;
}

/// A placement of the layers between some cuts as one of the chain with all cuts, about which its proof says nothing.
Placement over_whole_chain(Placement placement, const ChainView& view, const ChainView& whole)
{
  const auto over_whole = [&](const std::vector<StagePlacement>& stages) {
    return over_chain_of(whole, over_layers_of(view, stages), "placement");
  };
  placement.stages = over_whole(placement.stages);
  for (auto& stages : placement.alternatives) stages = over_whole(stages);
  placement.objective_bound.reset();
  placement.certificate = {};
  if (placement.outcome == Outcome::Optimal) placement.outcome = Outcome::Feasible;
  return placement;
}

/// Makes the plans of the placements that an allocator, or the external program `name` where there is none, finds.
std::vector<Plan> plans_of(const std::string& name, const Allocator* allocator, const Workload& workload,
                           const Cluster& cluster, const Goal& goal, const SearchLimits& limits)
{
  SearchClock clock(limits);
  if (goal.microbatches > most_microbatches_by_recurrence) {
    throw InputError("microbatches",
                     fmt::format("{} are too many; at most {}, since a step is predicted micro-batch by micro-batch",
                                 goal.microbatches, most_microbatches_by_recurrence));
  }
  ensure(!workload.layers.empty() && !cluster.devices.empty() && goal.microbatches > 0,
         "a problem has layers, devices and micro-batches");
  require_unit(workload, name, allocator);
  require_plannable(goal, allocator, allocators());
  require_replicas(goal, name, allocator);
  const ChainView whole_view = chain_view(workload);  // what claims are about
  const ChainView view = limits.rules ? chain_view(workload, limits.rules->first_layers) : whole_view;
  if (allocator != nullptr) require_size(*allocator, view.workload.layers.size(), cluster.devices.size());
  const CostModel chain_cost(view.workload, cluster);
  Problem problem{chain_cost, goal, limits};
  over_chain_of(whole_view, limits.start, "start");  // refuses cuts where several tensors cross
  problem.limits.start = over_chain_of(view, cut_by_rules(limits.start, limits.rules, view), "start");
  const HybridProblem hybrid{workload, view, cluster, goal, limits};
  const HybridProblem whole{workload, whole_view, cluster, goal, limits};
  ExternalAnswer answer;
  if (allocator == nullptr) {
    Problem asked = problem;
    if (!chain_schedule(goal.schedule)) asked.goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
    answer = ask_program(name.substr(external_prefix.size()), asked, view);
  }
  const auto place = [&](const Problem& one) {
    return allocator != nullptr ? allocator->place(one) : placement_of(answer, one);
  };
  const auto note_chain = [&](Plan& plan) {
    // Whose reasons name no layers.
    if (allocator != nullptr && (allocator->uses_machines || allocator->divides_operators)) return;
    if (!plan.stages.empty() || view.workload.layers.size() == workload.layers.size()) return;
    plan.reason += fmt::format("; layer numbers are those of the chain of {} that the graph can be cut into",
                               view.workload.layers.size());
  };
  std::vector<Plan> plans;
  const bool moves_cuts = limits.start_plan.has_value();
  const bool proposes =
      moves_cuts || (allocator != nullptr ? allocator->propose != nullptr : !answer.plan.stages.empty());
  if (proposes || !chain_schedule(goal.schedule)) {
    if (proposes) {
      if (goal.is_formula()) {
        throw InputError("objective",
                         fmt::format("{} is a formula of one chain; the plans of {} are for objective step",
                                     name_of(goal.objective), name));
      }
      auto proposals = moves_cuts             ? propose_moved_cuts(hybrid)
                       : allocator != nullptr ? allocator->propose(hybrid)
                                              : proposals_of(answer, hybrid);
      try {
        plans = priced_plans(std::move(proposals), whole, clock);
      } catch (const InputError& fault) {
        if (allocator != nullptr) throw;
        throw InputError(name, fault.what());
      }
    } else {
      plans = plans_by_playing(place, workload, view, cluster, goal, problem.limits);
      raise_bounds(plans, workload, cluster);
    }
    for (auto& plan : plans) {
      plan.allocator = name;
      plan.search_time = clock.elapsed();
      note_chain(plan);
      check(plan, workload, cluster);
    }
    return plans;
  }
  Placement placement = place(problem);
  const Seconds search_time = clock.elapsed();
  const bool has_all_cuts = view.first_layer == whole_view.first_layer;
  if (!has_all_cuts && !placement.stages.empty()) placement = over_whole_chain(std::move(placement), view, whole_view);
  if (has_training_system(workload, goal, allocator) && !placement.stages.empty()) {
    Proposals proposals;
    proposals.is_cut_short = placement.outcome == Outcome::TimedOut;
    placement.alternatives.insert(placement.alternatives.begin(), placement.stages);
    for (const auto& stages : placement.alternatives) {
      Plan& plan = proposals.plans.emplace_back();
      plan.goal = goal;
      plan.stages = plan_stages(CostModel(workload, cluster), over_layers_of(whole_view, stages));
    }
    plans = priced_plans(std::move(proposals), whole, clock);
    for (auto& plan : plans) {
      plan.allocator = name;
      plan.search_time = search_time;
      check(plan, workload, cluster);
    }
    return plans;
  }

  RuleCheck rules(limits.rules, workload, cluster);
  const CostModel whole_cost(whole_view.workload, cluster);
  const auto add = [&](const Placement& one) {
    Plan plan;
    Seconds proven_bound;
    plan.allocator = name;
    plan.goal = goal;
    plan.outcome = one.outcome;
    plan.reason = one.reason;
    plan.recompute = workload.recompute;
    plan.data_server = cluster.data_server;
    if (one.stages.empty()) {
      ensure(plan.outcome == Outcome::Infeasible || plan.outcome == Outcome::TimedOut, "a plan without stages");
      note_chain(plan);
    } else {
      proven_bound =
          make_claims(plan, one, over_layers_of(whole_view, one.stages), CostModel(workload, cluster), whole_cost);
      if (!rules.takes(plan, *plan.objective)) return;
    }
    check(plan, workload, cluster);
    ensure(!plan.objective || proven_bound <= *plan.objective * (1 + tolerance),
           "a lower bound is above the objective of a plan");
    plan.search_time = search_time;
    plans.push_back(std::move(plan));
  };
  add(placement);
  for (auto& stages : placement.alternatives) {
    Placement other = placement;
    other.stages = std::move(stages);
    if (other.outcome == Outcome::Optimal) other.outcome = Outcome::Feasible;  // unless its own claims prove it
    add(other);
  }
  if (plans.empty()) {
    const bool is_over = placement.outcome == Outcome::TimedOut;
    add({.outcome = is_over ? Outcome::TimedOut : Outcome::Infeasible, .reason = rules.reason()});
  }
  return plans;
}

/// The same for each variant of the workload that the limits leave open, best first.
std::vector<Plan> plans_of_variants(const std::string& name, const Allocator* allocator, const Workload& workload,
                                    const Cluster& cluster, const Goal& goal, SearchLimits limits)
{
  const auto variants = variants_of(allocator, workload, cluster, goal, limits);
  const auto plans_of_variant = [&](const Variant& variant) {
    Goal with_parts = goal;
    with_parts.microbatches = variant.microbatches;
    return plans_of(name, allocator, as_variant(workload, variant), cluster, with_parts, limits);
  };
  if (variants.size() == 1) return plans_of_variant(variants.front());
  if (limits.time_limit) *limits.time_limit = *limits.time_limit / static_cast<double>(variants.size());
  std::vector<Plan> all;
  Seconds search_time;
  Seconds bound(std::numeric_limits<double>::infinity());
  for (const auto& variant : variants) {
    auto plans = plans_of_variant(variant);
    search_time += plans.front().search_time;
    if (plans.front().objective_bound) bound = std::min(bound, *plans.front().objective_bound);
    std::move(plans.begin(), plans.end(), std::back_inserter(all));
  }
  const auto objective = [](const Plan& plan) {
    return plan.objective.value_or(Seconds(std::numeric_limits<double>::infinity()));
  };
  std::stable_sort(all.begin(), all.end(), [&](const Plan& a, const Plan& b) { return objective(a) < objective(b); });
  while (all.size() > limits.candidates || (all.size() > 1 && all.back().stages.empty())) all.pop_back();
  for (auto& plan : all) {
    plan.search_time = search_time;
    const bool is_proven = plan.objective && bound >= *plan.objective * (1 - tolerance);
    if (plan.outcome == Outcome::Optimal && !is_proven) plan.outcome = Outcome::Feasible;  // among its variant only
  }
  return all;
}

/// The plans of an allocator whose stages may pass through devices that are too small for them, and those whose stages
/// need not.
std::vector<Plan> plans_with_offload(const Allocator& allocator, const Workload& workload, const Cluster& cluster,
                                     const Goal& goal, SearchLimits limits)
{
  constexpr std::size_t least_tried = 8;
  SearchClock clock(limits);
  limits.offload = false;
  const std::string name(allocator.name);
  if (goal.objective != Objective::Step) {
    throw InputError("--offload",
                     fmt::format("auto is for objective step, not for {}, which counts no copies and updates",
                                 name_of(goal.objective)));
  }
  const ChainView view = chain_view(workload);
  const HybridProblem problem{workload, view, cluster, goal, limits};
  auto proposals = propose_offloads(problem, [&](const Cluster& roomy) {
    SearchLimits more = limits;
    more.candidates = std::max(limits.candidates, least_tried);
    return plans_of(name, &allocator, workload, roomy, goal, more);
  });
  auto plans = priced_plans(std::move(proposals), problem, clock);
  for (auto& plan : plans) {
    plan.allocator = name;
    check(plan, workload, cluster);
  }
  for (auto& plan : plans_of(name, &allocator, workload, cluster, goal, limits)) {
    if (!plan.stages.empty()) plans.push_back(std::move(plan));
  }
  if (plans.size() > 1) std::erase_if(plans, [](const Plan& plan) { return plan.stages.empty(); });
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Plan& a, const Plan& b) { return a.objective.value() < b.objective.value(); });
  if (plans.size() > limits.candidates) plans.resize(limits.candidates);
  for (auto& plan : plans) plan.search_time = clock.elapsed();
  return plans;
}

}  // namespace

const std::vector<Allocator>& allocators()
{
  static const std::vector<Allocator> all = {
      amp_allocator,           chain_dp_allocator,      ddp_allocator,
      deepspeed_moe_allocator, dp_cp_allocator,         dp_ev_allocator,
      dtfm_allocator,          dtfm_exact_allocator,    even_allocator,
      exact_allocator,         fastmoe_allocator,       published_fastmoe_allocator,
      grid_allocator,          horovod_allocator,       hybrid_allocator,
      l2l_allocator,           local_search_allocator,  metis_allocator,
      resident_allocator,      sky_dynamic_allocator,   sky_dynamic_fixed_allocator,
#ifdef ISOBAR_HAS_CBC
      sky_optimal_allocator,
#endif
      spmd_allocator,          stronghold_allocator,    published_stronghold_allocator,
      window_allocator,        zero_infinity_allocator, zero_offload_allocator,
  };
  return all;
}

void require_allocator(const std::string& name)
{
  if (is_external(name)) {
    if (name.size() > external_prefix.size()) return;
    throw InputError("exec:", "no program; write exec:PROGRAM, such as exec:examples/external_allocator.py");
  }
  if (find_allocator(name) != nullptr) return;
#ifndef ISOBAR_HAS_CBC
  if (name == sky_optimal_allocator.name) {
    throw InputError(name, "this build has no CBC; install coinor-libcbc-dev, then configure and build again");
  }
#endif
  std::vector<std::string> names;
  std::string list;
  for (const auto& allocator : allocators()) {
    names.emplace_back(allocator.name);
    list += names.back() + ", ";
  }
  const std::string nearest = nearest_word(name, names);
  throw InputError("allocator",
                   fmt::format("{} is not known; {}", in_quotes(name),
                               nearest.empty() ? "use " + list + "or exec:PROGRAM" : "did you mean " + nearest + "?"));
}

bool has_property(const std::string& name, bool Allocator::*property)
{
  const Allocator* allocator = find_allocator(name);
  return allocator != nullptr && allocator->*property;
}

std::vector<std::string_view> names_with(bool Allocator::*property)
{
  std::vector<std::string_view> names;
  for (const auto& allocator : allocators()) {
    if (allocator.*property) names.push_back(allocator.name);
  }
  return names;
}

void require_property(bool Allocator::*property, const std::string& option, const std::vector<std::string>& names)
{
  for (const auto& name : names) require_allocator(name);
  const auto has_it = [property](const std::string& name) { return has_property(name, property); };
  if (std::any_of(names.begin(), names.end(), has_it)) return;
  throw InputError(option, fmt::format("works only with allocator {}, not with {}",
                                       fmt::join(names_with(property), " or "), fmt::join(names, " or ")));
}

void require_schedule(const std::string& name, const Goal& goal)
{
  require_plannable(goal, find_allocator(name), allocators());
}

bool places_replicas(const std::string& name)
{
  const Allocator* allocator = find_allocator(name);
  return allocator != nullptr && allocator->propose != nullptr;
}

Defaults defaults_of(const std::string& name, Objective objective, bool offload)
{
  Defaults defaults{Goal::with_defaults(objective)};
  if (has_property(name, &Allocator::divides_operators) && objective == Objective::Step) {
    const bool is_sequential = has_property(name, &Allocator::is_sequential);
    defaults.goal.schedule = {.name = is_sequential ? "sequential" : "duplex"};
    defaults.goal.microbatches = 2;
    return defaults;
  }
  const bool uses_machine = has_property(name, &Allocator::uses_machines);
  if (!uses_machine && !(offload && has_property(name, &Allocator::takes_offload))) return defaults;
  defaults.recompute = "inner";
  if (objective != Objective::Step) return defaults;
  defaults.goal.schedule = choice_of(ChainSchedule::GPipe);
  if (uses_machine) defaults.goal.microbatches = 1;
  return defaults;
}

Plan allocate(const std::string& name, const Workload& workload, const Cluster& cluster, const Goal& goal,
              const SearchLimits& limits)
{
  return std::move(allocate_candidates(name, workload, cluster, goal, for_one_plan(limits)).front());
}

Plan allocate(const Allocator& allocator, const Workload& workload, const Cluster& cluster, const Goal& goal,
              const SearchLimits& limits)
{
  return std::move(
      plans_of_variants(std::string(allocator.name), &allocator, workload, cluster, goal, for_one_plan(limits))
          .front());
}

std::vector<Plan> allocate_candidates(const std::string& name, const Workload& workload, const Cluster& cluster,
                                      const Goal& goal, const SearchLimits& limits)
{
  require_allocator(name);
  const Allocator* allocator = find_allocator(name);
  if (limits.offload && allocator != nullptr) return plans_with_offload(*allocator, workload, cluster, goal, limits);
  return plans_of_variants(name, allocator, workload, cluster, goal, limits);
}

std::optional<Plan> carry_over(const Plan& plan, const Workload& workload, const Cluster& cluster, const Goal& goal)
{
  if (plan.stages.empty() || !is_chain(plan) || !chain_schedule(goal.schedule)) return std::nullopt;
  if (goal.objective == Objective::DtFm) return std::nullopt;
  const CostModel cost(workload, cluster);
  const auto stages = placement_of(plan, cluster);
  if (overfull_stage(cost, goal, stages)) return std::nullopt;
  const ChainView view = chain_view(workload);
  const CostModel chain_cost(view.workload, cluster);
  Placement placement;
  placement.stages = over_chain_of(view, stages, "plan");
  Plan carried;
  carried.allocator = plan.allocator;
  carried.goal = goal;
  carried.recompute = workload.recompute;
  carried.data_server = cluster.data_server;
  carried.search_time = plan.search_time;
  make_claims(carried, placement, stages, cost, chain_cost);
  check(carried, workload, cluster);
  return carried;
}

Plan priced_for(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  if (plan.stages.empty()) return plan;
  if (plan.experts != workload.experts) return priced_for(plan, with_experts(workload, plan.experts), cluster);
  ensure(plan.goal.objective == Objective::Step, "plans for objective step are priced for other inputs");
  const CostModel cost(workload, cluster);
  Plan proposed;
  proposed.goal = plan.goal;
  proposed.stages = plan.stages;
  proposed.sync = plan.sync;
  proposed.transfers = plan.transfers;
  proposed.system = plan.system;
  proposed.samples = plan.samples;
  proposed.context = plan.context;
  proposed.experts = plan.experts;
  for (auto& stage : proposed.stages) {
    for (auto& replica : stage.replicas) {
      for (auto& shard : replica.shards) {
        const double share = shard.share;
        shard = shard_on(cost, cluster.device_index(shard.device).value());
        shard.share = share;
      }
    }
  }
  const ChainView view = chain_view(workload);
  SearchClock clock{{}};
  Plan priced = std::move(
      priced_plans({.plans = {proposed}}, HybridProblem{workload, view, cluster, plan.goal, {}}, clock).front());
  priced.allocator = plan.allocator;
  priced.search_time = plan.search_time;
  check(priced, workload, cluster);
  return priced;
}

void adopt_bound(Plan& plan, const Plan& other)
{
  if (!plan.objective || !other.objective_bound || *other.objective_bound <= *plan.objective_bound) return;
  if (has_shared_stages(plan) && !has_shared_stages(other)) return;  // a bound of chains
  if (!is_chain(plan) && is_chain(other)) return;                    // likewise
  if (plan.routing != other.routing || plan.experts != other.experts || plan.context != other.context) {
    return;  // a bound of other work
  }
  if (uses_machines(plan) != uses_machines(other)) return;  // a bound of plans without machines
  if (plan.goal.objective == Objective::DtFm && !have_same_stages(plan, other)) return;
  if (other.certificate.kind == CertificateKind::Load) {
    if (other.goal.schedule.name != plan.goal.schedule.name) return;
    if (takes_whole_runs(other) && !takes_whole_runs(plan)) return;
  }
  plan.objective_bound = std::min(*other.objective_bound, *plan.objective);
  plan.certificate = other.certificate;
  if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
}

}  // namespace isobar::allocators

#include "allocators/played_plan.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/comparisons.hpp"
#include "allocators/bounds/window_bound.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/operator_costs.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/replica_costs.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/check/tier_memory.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/pricing.hpp"
#include "core/costs/cost_model.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/contention.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/played_step.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/list_scheduler.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

namespace {

/// A time that no order of a placement with a stage on each device is below, as far as its micro-batches fit in memory.
/// The first forward waits for the first input.
Seconds least_step_of_orders(const Plan& plan, const CostModel& cost)
{
  const auto stages = placement_of(plan, cost.cluster());
  const TransferTimes input = cost.input_transfer(stages.front().device);
  const Seconds begin = plan.goal.has_free_transfers() ? Seconds(0) : input.total();
  return begin + schedules::makespan_bound(pipeline_times(cost, stages, plan.goal));
}

/// A time in which no step can end because of what ranks have their machines do: each updates what it must, gradients
/// leave the device once and parameters come there at least once.
Seconds least_step_of_machines(const Plan& plan, const CostModel& cost)
{
  if (!uses_machines(plan)) return {};
  const ParameterBytes bytes = parameter_bytes(cost.workload());
  const PlayerRates rates = nominal_rates(plan, cost.cluster());
  std::vector<Seconds> updates(rates.machines.size()), in(rates.machines.size()), out(rates.machines.size());
  for (const auto& [index, replica, shard, rank] : placed_shards(plan)) {
    const Stage& stage = plan.stages[index];
    if (stage.residence.optimizer == Tier::Device) continue;
    const MachineRates& machine = rates.machines[rank];
    for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
      const Layer& layer = cost.workload().layers[k];
      const auto parameters = static_cast<double>(layer.parameters);
      updates[rank] +=
          machine_update_work(cost.workload(), layer) / std::max(machine.update_speed, machine.busy_update_speed);
      in[rank] += Bytes(parameters * bytes.parameter) / machine.in.bandwidth;
      out[rank] += Bytes(parameters * bytes.gradient) / machine.out.bandwidth;
    }
  }
  Seconds least;
  for (const auto* each : {&updates, &in, &out}) least = std::max(least, *std::max_element(each->begin(), each->end()));
  return least;
}

}  // namespace

namespace {

/// Writes the claims of a plan whose devices divide operators. No other way to divide them takes less than all devices
/// need for the work together.
void price_operators(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const auto program = schedules::make_program(plan, workload, cluster);
  const PlayerRates rates = nominal_rates(plan, cluster);
  const OperatorCosts costs(*program, rates, plan.goal.microbatches);
  const PlayedProgram played = play_program(*program, rates);
  plan.predicted = costs.formulas();
  plan.predicted->step_time = played.periods.front().step_time;
  plan.predicted->step_time_by = StepTimeBy::Played;
  for (const auto& memory : tier_memories(plan, cluster, played)) {
    plan.predicted->peak_memory[memory.name] = memory.need;
  }
  plan.objective = plan.predicted->step_time;
  plan.step_bound = std::min(costs.least_step(), *plan.objective) / cluster.profile_speedup;  // but for rounding
  plan.schedule_bound.reset();
  constexpr bool shares_stages = true;  // other plans do, if this one does not
  const Bound bound = played_bound(CostModel(workload, cluster), plan.goal, shares_stages);
  plan.objective_bound = std::min(bound.value, *plan.objective);
  plan.certificate = bound.certificate;
  if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
}

/// Lets a plan do what its training system does. One that names a system already has the rules that it is to have.
void take_system(Plan& plan, const Workload& workload)
{
  if (plan.system) return;
  plan.sync.sharded = std::min(plan.sync.sharded, compute::most_divided(workload));
  compute::take_system(plan, workload);
}

}  // namespace

void price_by_playing(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  take_system(plan, workload);
  ensure(plan.goal.objective == Objective::Step && !is_chain(plan), "a step is played where it has no recurrence");
  if (divides_operators(plan)) return price_operators(plan, workload, cluster);
  const compute::AsTrained trained(plan, workload, cluster);
  const CostModel cost(trained.workload(), trained.cluster());
  const auto orders = schedules::orders_of(plan);
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster(), orders);
  const PlayedProgram played =
      schedules::play_steps(plan, trained.workload(), trained.cluster(), *program, counted_step(plan).played());
  const ReplicaCosts costs(plan, orders, cost);

  plan.predicted = costs.formulas();
  plan.predicted->step_time = played.periods[counted_step(plan).before].step_time;
  plan.predicted->step_time_by = StepTimeBy::Played;
  for (const auto& memory : tier_memories(plan, cluster, played))
    plan.predicted->peak_memory[memory.name] = memory.need;
  plan.objective = plan.predicted->step_time;
  const Seconds least = counted_step(plan).overlaps() ? costs.busiest_device() : costs.least_step();
  plan.step_bound = std::max(least, least_step_of_machines(plan, cost)) / cluster.profile_speedup;
  plan.schedule_bound.reset();
  if (schedules::require_schedule(plan.goal.schedule.name).allocator_makes_orders) {
    plan.schedule_bound = least_step_of_orders(plan, cost) / cluster.profile_speedup;
  }
  const CostModel of_all(workload, cluster);  // of any placement
  Bound bound =
      uses_machines(plan) ? window_bound(plan, of_all) : played_bound(of_all, plan.goal, has_shared_stages(plan));
  bound.value = compute::least_as_trained(plan, workload, cluster) * bound.value;
  plan.objective_bound = std::min(bound.value, *plan.objective);
  plan.certificate = bound.certificate;
  if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
}

namespace {

/// The played step of a chain, where it may differ from the recurrence.
std::optional<Seconds> played_step_of_chain(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const compute::AsTrained trained(plan, workload, cluster);
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  if (instructions_of(*program) > most_played_instructions) return std::nullopt;
  const PlayerRates rates = nominal_rates(plan, trained.cluster());
  const bool has_contention = contention_of(*program, rates).is_anywhere();
  const bool sums_copies = !tied_matrices(trained.workload(), plan).empty();
  if (!has_contention && !sums_copies && (plan.stages.size() == 1 || !needs_gradient_sync(workload)))
    return std::nullopt;
  return play_program(*program, rates).periods.front().step_time;
}

}  // namespace

void play_chain(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const auto step = played_step_of_chain(plan, workload, cluster);
  if (!step) return;
  plan.predicted.value().step_time = *step;
  plan.predicted->step_time_by = StepTimeBy::Played;
}

Seconds predicted_step(const Plan& plan, const CostModel& cost)
{
  if (!is_chain(plan)) return plan.predicted.value().step_time;
  return played_step_of_chain(plan, cost.workload(), cost.cluster()).value_or(plan.objective.value());
}

namespace {

/// What else helps a plan that needs more memory on the host of machine `name` than it has: a disk that it does not
/// use.
std::string_view hint_of_disk(const Plan& plan, const std::string& name, const Cluster& cluster)
{
  const auto has_on = [&](Tier tier) {
    return std::any_of(plan.stages.begin(), plan.stages.end(),
                       [&](const Stage& stage) { return stage.residence.optimizer == tier; });
  };
  const bool has_disk = std::any_of(cluster.machines.begin(), cluster.machines.end(),
                                    [&](const Machine& machine) { return machine.name == name && machine.disk; });
  if (!has_disk || has_on(Tier::Disk) || !has_on(Tier::Host)) return "";
  return "; allocators window and zero-infinity can have optimizer states on its disk";
}

}  // namespace

std::optional<Excess> excess_of_devices(const Plan& plan, const Cluster& cluster)
{
  std::optional<Excess> worst;
  for (const auto& [name, need] : plan.predicted.value().peak_memory) {
    const TierMemory memory = memory_named(name, cluster).value();
    const Bytes excess = need - memory.has;
    if ((worst && excess <= worst->size) || need <= memory.has * (1 + tolerance)) continue;
    worst =
        Excess{fmt::format("{} {}: its stages need {} under schedule {} and it has {}; {} more memory there would "
                           "be enough{}",
                           name_of(memory.tier), name, text_of(need), text_of(plan.goal.schedule), text_of(memory.has),
                           text_of(excess), memory.tier == Tier::Host ? hint_of_disk(plan, name, cluster) : ""),
               excess};
  }
  return worst;
}

std::optional<Excess> price(Plan& plan, const CostModel& cost)
{
  const Cluster& cluster = cost.cluster();
  take_system(plan, cost.workload());
  if (!is_chain(plan)) {
    price_by_playing(plan, cost.workload(), cluster);
    return excess_of_devices(plan, cluster);
  }
  const auto stages = placement_of(plan, cluster);
  plan.objective = cost.evaluate(stages, plan.goal).objective;
  auto reason = overfull_stage(cost, plan.goal, stages);
  if (!reason) return std::nullopt;
  Excess largest{std::move(*reason), {}};
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const Bytes need = stage_memory(cost, plan.goal, stages[i], stages.size() - 1 - i);
    largest.size = std::max(largest.size, need - cluster.devices[stages[i].device].memory);
  }
  return largest;
}

}  // namespace isobar::allocators

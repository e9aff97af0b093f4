#include "allocators/played_plan.hpp"

#include "allocators/bounds.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/replica_costs.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"
#include "core/plan/cost_model.hpp"
#include "core/plan/nominal_rates.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
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

constexpr double tolerance = 1e-9;

/// A time that no order of a placement with a stage on each device is below, as far as its micro-batches fit in memory.
/// The first forward waits for the first input.
Seconds least_step_of_orders(const Plan& plan, const CostModel& cost)
{
  const auto stages = placement_of(plan, cost.cluster());
  const TransferTimes input = cost.input_transfer(stages.front().device);
  const Seconds begin = plan.goal.has_free_transfers() ? Seconds(0) : input.total();
  return begin + schedules::makespan_bound(pipeline_times(cost, stages, plan.goal));
}

}  // namespace

void price_by_playing(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  ensure(plan.goal.objective == Objective::Step && !is_chain(plan), "a step is played where it has no recurrence");
  const CostModel cost(workload, cluster);
  const auto orders = schedules::orders_of(plan);
  const auto program = schedules::make_program(plan, workload, orders);
  const PlayedProgram played = play_program(*program, nominal_rates(plan, workload, cluster));
  const ReplicaCosts costs(plan, orders, cost);
  const auto devices = devices_of(plan);

  plan.predicted = costs.formulas();
  plan.predicted->step_time = played.periods.front().end;
  plan.predicted->step_time_by = StepTimeBy::Played;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    plan.predicted->peak_memory[devices[rank]] = played.peak_memory[rank][static_cast<std::size_t>(Tier::Device)];
  }
  plan.objective = plan.predicted->step_time;
  plan.step_bound = costs.least_step() / cluster.profile_speedup;
  plan.schedule_bound.reset();
  if (schedules::require_schedule(plan.goal.schedule.name).allocator_makes_orders) {
    plan.schedule_bound = least_step_of_orders(plan, cost) / cluster.profile_speedup;
  }
  const Bound bound = played_bound(cost, plan.goal, has_shared_stages(plan));
  plan.objective_bound = std::min(bound.value, *plan.objective);
  plan.certificate = bound.certificate;
  if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
}

std::optional<Excess> excess_of_devices(const Plan& plan, const Cluster& cluster)
{
  std::optional<Excess> worst;
  for (const auto& [name, need] : plan.predicted.value().peak_memory) {
    const Bytes memory = cluster.devices[cluster.device_index(name).value()].memory;
    const Bytes excess = need - memory;
    if ((worst && excess <= worst->size) || need <= memory * (1 + tolerance)) continue;
    worst = Excess{
        fmt::format("device {}: its stages need {} under schedule {} and it has {}; {} more memory there would be "
                    "enough",
                    name, text_of(need), text_of(plan.goal.schedule), text_of(memory), text_of(excess)),
        excess};
  }
  return worst;
}

std::optional<Excess> price(Plan& plan, const CostModel& cost)
{
  const Cluster& cluster = cost.cluster();
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

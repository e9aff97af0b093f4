#include "allocators/played_plan.hpp"

#include "allocators/bounds.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"
#include "core/plan/cost_model.hpp"
#include "core/plan/nominal_rates.hpp"
#include "core/program/player.hpp"
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

/// A stage for one micro-batch. The transfers are over the cut after it, if the next stage is on another device.
struct StageCosts {
  std::size_t rank = 0;
  Seconds forward;
  Seconds backward;
  Seconds weights;  // the part of the backward pass that no other stage waits for
  TransferTimes output;
  TransferTimes gradient;

  Seconds compute() const { return forward + backward; }
  Seconds passes() const { return forward + backward - weights; }
};

/// The costs of a plan's stages under orders by rank.
std::vector<StageCosts> stage_costs(const Plan& plan, const schedules::PipelineShape& shape,
                                    const std::vector<Order>& orders, const CostModel& cost)
{
  const Cluster& cluster = cost.cluster();
  std::vector<std::size_t> devices;
  for (const auto& name : shape.devices) devices.push_back(cluster.device_index(name).value());
  const auto stages_of_rank = schedules::stages_by_rank(shape);
  std::vector<StageCosts> stages(plan.stages.size());
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    for (std::uint32_t part = 0; part < stages_of_rank[rank].size(); ++part) {
      const std::size_t index = stages_of_rank[rank][part];
      const Stage& stage = plan.stages[index];
      StageCosts& costs = stages[index];
      costs.rank = rank;
      costs.forward = cost.forward_work(stage.first_layer, stage.last_layer) / cost.speed(devices[rank]);
      costs.backward = cost.backward_work(stage.first_layer, stage.last_layer) / cost.speed(devices[rank]);
      if (orders[rank].count(Opcode::BackwardWeight, part) == 0) continue;
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        costs.weights += cost.workload().layers[layer].backward_weight / cost.speed(devices[rank]);
      }
    }
  }
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) {
    const std::size_t from = devices[stages[i].rank];
    const std::size_t to = devices[stages[i + 1].rank];
    if (from == to) continue;
    stages[i].output = cost.output_transfer(from, to, plan.stages[i + 1].first_layer);
    stages[i].gradient = cost.gradient_transfer(from, to, plan.stages[i + 1].first_layer);
  }
  return stages;
}

/// A time that no order of the same work on the same devices is below. A device begins when its first input can be
/// there, then computes all micro-batches, and after its last backward pass a gradient travels back to the first stage.
/// One micro-batch passes through everything while the busiest lane works on the others.
Seconds least_step(const std::vector<StageCosts>& stages, TransferTimes input, const Goal& goal)
{
  const bool is_free = goal.has_free_transfers();
  const auto time_of = [is_free](TransferTimes transfer) { return is_free ? Seconds(0) : transfer.total(); };
  const auto turn_of = [is_free](TransferTimes transfer) { return is_free ? Seconds(0) : transfer.data; };
  const auto microbatches = static_cast<double>(goal.microbatches);
  struct Device {
    Seconds begin;  // of its first stage at the earliest
    Seconds back;   // from its first stage's backward until that of the first stage of all
    Seconds compute;
    Seconds passes;
  };
  std::vector<Device> devices;
  std::vector<bool> is_known;
  Seconds there = time_of(input);
  Seconds back;
  Seconds turn = turn_of(input);
  for (const auto& stage : stages) {
    if (stage.rank >= devices.size()) {
      devices.resize(stage.rank + 1);
      is_known.resize(stage.rank + 1);
    }
    Device& device = devices[stage.rank];
    if (!is_known[stage.rank]) {
      is_known[stage.rank] = true;
      device.begin = there;
      device.back = back;
    }
    device.compute += stage.compute();
    device.passes += stage.passes();
    there += stage.forward + time_of(stage.output);
    back += stage.backward - stage.weights + time_of(stage.gradient);
    turn =
        std::max({turn, stage.forward, stage.backward - stage.weights, turn_of(stage.output), turn_of(stage.gradient)});
  }
  const Seconds last_weights = stages.front().weights;
  Seconds least = there + back + (microbatches - 1) * turn + last_weights;
  for (const auto& device : devices) {
    least = std::max({least, device.begin + microbatches * device.compute,
                      device.begin + microbatches * device.passes + device.back + last_weights});
  }
  return least;
}

/// A time that no order of a placement with a stage on each device is below, as far as its micro-batches fit in memory.
/// The first forward waits for the first input.
Seconds least_step_of_orders(const Plan& plan, const CostModel& cost, TransferTimes input)
{
  std::vector<StagePlacement> stages;
  for (const auto& stage : plan.stages) {
    stages.push_back({cost.cluster().device_index(stage.device()).value(), stage.first_layer, stage.last_layer});
  }
  const Seconds begin = plan.goal.has_free_transfers() ? Seconds(0) : input.total();
  return begin + schedules::makespan_bound(pipeline_times(cost, stages, plan.goal));
}

/// The formulas of docs/costs.md, for devices in place of stages: the bottleneck is what a device takes per
/// micro-batch.
Predicted formulas(const std::vector<StageCosts>& stages, TransferTimes input, const Goal& goal)
{
  const auto communication =
      goal.communication == Communication::Played ? Communication::Overlapped : goal.communication;
  Seconds sum = CostModel::stage_cost(communication, Seconds(0), CostModel::counted(communication, input));
  Predicted predicted;
  predicted.bottleneck = sum;
  predicted.sequential = input.total();
  std::vector<Seconds> cost_of_device(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageCosts& stage = stages[i];
    Seconds send = CostModel::counted(communication, stage.output);
    if (i > 0) send += CostModel::counted(communication, stages[i - 1].gradient);
    const Seconds cost = CostModel::stage_cost(communication, stage.compute(), send);
    cost_of_device[stage.rank] += cost;
    sum += cost;
    predicted.sequential += stage.compute() + stage.output.total() + stage.gradient.total();
  }
  for (const Seconds cost : cost_of_device) predicted.bottleneck = std::max(predicted.bottleneck, cost);
  predicted.pipeline = CostModel::objective_of(Objective::Pipeline, goal.microbatches, predicted.bottleneck, sum);
  return predicted;
}

}  // namespace

void price_by_playing(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  ensure(plan.goal.objective == Objective::Step && !is_chain(plan), "a step is played where it has no recurrence");
  const CostModel cost(workload, cluster);
  const auto shape = schedules::shape_of(plan);
  const auto orders = schedules::require_schedule(plan.goal.schedule.name).orders(shape, plan.goal.schedule);
  const auto program = schedules::make_program(plan, workload, orders);
  const PlayedProgram played = play_program(*program, nominal_rates(plan, workload, cluster));
  const auto stages = stage_costs(plan, shape, orders, cost);
  const auto& devices = shape.devices;
  const TransferTimes input = cost.input_transfer(cluster.device_index(devices.front()).value());

  plan.predicted = formulas(stages, input, plan.goal);
  plan.predicted->step_time = played.periods.front().end;
  plan.predicted->step_time_by = StepTimeBy::Played;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    plan.predicted->peak_memory[devices[rank]] = played.peak_memory[rank][static_cast<std::size_t>(Tier::Device)];
  }
  plan.objective = plan.predicted->step_time;
  plan.step_bound = least_step(stages, input, plan.goal) / cluster.profile_speedup;
  plan.schedule_bound.reset();
  if (schedules::require_schedule(plan.goal.schedule.name).allocator_makes_orders) {
    plan.schedule_bound = least_step_of_orders(plan, cost, input) / cluster.profile_speedup;
  }
  const Bound bound = objective_bound(cost, plan.goal);
  plan.objective_bound = std::min(bound.value, *plan.objective);
  plan.certificate = bound.certificate;
  if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
}

std::optional<std::string> overfull_device(const Plan& plan, const Cluster& cluster)
{
  std::string worst;
  Bytes largest_excess;
  for (const auto& [name, need] : plan.predicted.value().peak_memory) {
    const Bytes memory = cluster.devices[cluster.device_index(name).value()].memory;
    const Bytes excess = need - memory;
    if (excess <= largest_excess || need <= memory * (1 + tolerance)) continue;
    largest_excess = excess;
    worst = fmt::format(
        "device {}: its stages need {} under schedule {} and it has {}; {} more memory there would be "
        "enough",
        name, text_of(need), text_of(plan.goal.schedule), text_of(memory), text_of(excess));
  }
  return worst.empty() ? std::nullopt : std::optional(worst);
}

}  // namespace isobar::allocators

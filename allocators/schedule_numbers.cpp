#include "allocators/schedule_numbers.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "schedules/orders/warm_up.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace isobar::allocators {

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// How many micro-batches fit into the memory of a stage's device, within what a checker tolerates: no order that
/// passes it holds more.
std::uint64_t most_that_fit(const CostModel& cost, const StagePlacement& stage)
{
  const auto& [device, first, last] = stage;
  const Bytes memory = cost.cluster().devices[device].memory * (1 + tolerance);
  const Bytes without = cost.memory(first, last, 0);
  const Bytes each = cost.memory(first, last, 1) - without;
  if (without > memory) return 0;
  if (each.value <= 0) return unlimited;
  const double count = std::floor((memory - without) / each);
  return count < 1e15 ? static_cast<std::uint64_t>(count) : unlimited;
}

/// The time of the gradients of a stage's parameters for a micro-batch.
Seconds weight_time(const CostModel& cost, const StagePlacement& stage)
{
  Seconds time;
  for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
    time += cost.weight_time(stage.device, layer);
  }
  return time;
}

/// Backwards from an input gradient to its weight gradients, by stage, where the schedule splits them: the order of a
/// stage has its warm-up, that lag and one more micro-batch in flight.
std::vector<std::uint64_t> lags_of(const schedules::Schedule& schedule, std::size_t stages)
{
  std::vector<std::uint64_t> lags(stages, 0);
  if (!schedule.splits_backward) return lags;
  const std::uint64_t enough = 4 * static_cast<std::uint64_t>(stages) + 4;  // micro-batches that limit no order
  const auto orders = schedule.orders(folded_shape(schedule, stages, 1, enough), {std::string(schedule.name), {}, {}});
  for (std::size_t i = 0; i < stages; ++i) {
    const std::uint64_t warm_up = orders[i].position_of({Opcode::BackwardInput, 0, 0}) - 1;
    lags[i] = schedules::most_in_flight(orders[i]) - warm_up - 1;
  }
  return lags;
}

}  // namespace

ScheduleChoice given_part_of(ScheduleChoice choice)
{
  std::erase_if(choice.numbers, [](const auto& entry) { return entry.second.empty(); });
  choice.orders.clear();
  return choice;
}

bool chooses_warm_up(const Goal& goal)
{
  const auto warm_up = goal.schedule.numbers.find(warm_up_key);
  return warm_up != goal.schedule.numbers.end() && warm_up->second.empty();
}

std::vector<std::size_t> possible_parts(const schedules::Schedule& schedule, const ScheduleChoice& choice)
{
  const auto folding = schedule.folding;
  if (folding == schedules::Folding::OneEach || folding == schedules::Folding::DividedEnds) return {1};
  if (folding == schedules::Folding::V) return {2};
  const auto given = choice.numbers.find(chunks_key);
  if (given == choice.numbers.end() || given->second.empty()) return {2, 3, 4};
  return {given->second.front()};
}

schedules::PipelineShape folded_shape(const schedules::Schedule& schedule, std::size_t ranks, std::size_t parts,
                                      std::uint64_t microbatches)
{
  schedules::PipelineShape shape;
  shape.microbatches = microbatches;
  for (std::size_t rank = 0; rank < ranks; ++rank) shape.devices.push_back(fmt::format("{}", rank));
  for (std::size_t stage = 0; stage < ranks * parts; ++stage) {
    shape.rank_of_stage.push_back(schedules::rank_of_stage(schedule.folding, stage, ranks));
  }
  return shape;
}

std::vector<std::vector<std::uint64_t>> parts_in_flight(const schedules::Schedule& schedule,
                                                        const ScheduleChoice& choice, std::size_t ranks,
                                                        std::size_t parts, std::uint64_t microbatches)
{
  std::vector<std::vector<std::uint64_t>> counts;
  for (const auto& order : schedule.orders(folded_shape(schedule, ranks, parts, microbatches), choice)) {
    auto& of_rank = counts.emplace_back();
    for (std::uint32_t part = 0; part < parts; ++part) of_rank.push_back(schedules::most_in_flight(order, part));
  }
  return counts;
}

std::vector<std::uint64_t> held_counts(const schedules::Schedule& schedule, const ScheduleChoice& choice,
                                       std::size_t ranks, std::size_t parts, std::uint64_t microbatches)
{
  const auto orders = schedule.orders(folded_shape(schedule, ranks, parts, microbatches), choice);
  const auto entries = static_cast<std::size_t>(std::min<std::uint64_t>(ranks, microbatches));
  std::vector<std::uint64_t> held(entries, 1);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t ranks_after = ranks - 1 - rank;
    auto& count = held[std::min(ranks_after, entries - 1)];
    count = std::max(count, (schedules::most_in_flight(orders[rank]) + parts - 1) / parts);
  }
  for (std::size_t i = 1; i < entries; ++i) held[i] = std::max(held[i], held[i - 1]);
  return held;
}

std::optional<std::vector<std::uint64_t>> chosen_warm_up(const schedules::Schedule& schedule, const CostModel& cost,
                                                         const std::vector<StagePlacement>& stages, const Goal& goal)
{
  const auto lags = lags_of(schedule, stages.size());
  std::vector<schedules::StageRhythm> rhythms;
  Seconds all;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    schedules::StageRhythm rhythm;
    if (schedule.splits_backward) rhythm.weights = weight_time(cost, stages[i]);
    rhythm.pass = cost.compute_time(device, first, last) - rhythm.weights;
    if (i + 1 < stages.size() && !goal.has_free_transfers()) {
      rhythm.output = cost.output_transfer(device, stages[i + 1].device, last + 1);
      rhythm.gradient = cost.gradient_transfer(device, stages[i + 1].device, last + 1);
    }
    rhythm.lag = lags[i];
    rhythm.most_in_flight = most_that_fit(cost, stages[i]);
    all += rhythm.pass + rhythm.weights + rhythm.output.data + rhythm.gradient.data;
    rhythms.push_back(rhythm);
  }
  if (all.value <= 0) return std::nullopt;
  auto warm_up = schedules::least_warm_up(rhythms, goal.microbatches);
  return warm_up ? std::optional(std::move(warm_up->forwards)) : std::nullopt;
}

schedules::PipelineTimes pipeline_times(const CostModel& cost, const std::vector<StagePlacement>& stages,
                                        const Goal& goal)
{
  schedules::PipelineTimes times;
  times.microbatches = goal.microbatches;
  times.splits_backward = true;
  if (!goal.has_free_transfers()) times.input_data = cost.input_transfer(stages.front().device).data;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    schedules::DeviceTimes& of_device = times.devices.emplace_back();
    of_device.forward = cost.forward_time(device, first, last);
    of_device.backward_weight = weight_time(cost, stages[i]);
    // Sums that are equal may differ by rounding.
    const Seconds backward = cost.backward_time(device, first, last);
    of_device.backward_input = std::max(Seconds(0), backward - of_device.backward_weight);
    if (i + 1 < stages.size() && !goal.has_free_transfers()) {
      const TransferTimes output = cost.output_transfer(device, stages[i + 1].device, last + 1);
      const TransferTimes gradient = cost.gradient_transfer(device, stages[i + 1].device, last + 1);
      of_device.output = output.total();
      of_device.output_data = output.data;
      of_device.gradient = gradient.total();
      of_device.gradient_data = gradient.data;
    }
    of_device.slots = std::clamp<std::uint64_t>(most_that_fit(cost, stages[i]), 1, goal.microbatches);
  }
  return times;
}

}  // namespace isobar::allocators

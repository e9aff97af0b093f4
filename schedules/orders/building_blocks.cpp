#include "schedules/orders/building_blocks.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr std::uint64_t period = 6;  // units: three passes through two parts

struct TimedTask {
  std::uint64_t unit = 0;
  Task task;
};

/// All tasks of a rank in order, with the units in which they run.
std::vector<TimedTask> unrolled(const BuildingBlock& block, std::uint64_t microbatches)
{
  constexpr std::array<Task, 4> passes = {
      {{Opcode::Forward, 0}, {Opcode::Forward, 1}, {Opcode::BackwardInput, 1}, {Opcode::BackwardInput, 0}}};
  std::map<std::uint64_t, Task> by_unit;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    for (std::uint64_t m = 0; m < microbatches; ++m) {
      by_unit[block[i] + period * m] = {passes[i].opcode, passes[i].part, m};
    }
  }
  std::vector<TimedTask> tasks;
  std::deque<Task> weights;  // that wait
  std::uint64_t unit = 0;
  const auto add_weight = [&] {
    tasks.push_back({unit, weights.front()});
    weights.pop_front();
  };
  for (const auto& [next, task] : by_unit) {
    for (; unit < next; ++unit) {
      if (!weights.empty()) add_weight();
    }
    tasks.push_back({unit++, task});
    if (task.opcode == Opcode::BackwardInput) weights.push_back({Opcode::BackwardWeight, task.part, task.microbatch});
  }
  for (; !weights.empty(); ++unit) add_weight();
  return tasks;
}

std::vector<Order> repeated_on(const PipelineShape& shape, BuildingBlock (*block_of)(std::uint64_t, std::uint64_t))
{
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    orders.push_back(repeated_block(block_of(rank, shape.ranks()), shape.microbatches));
  }
  return orders;
}

}  // namespace

Order repeated_block(const BuildingBlock& block, std::uint64_t microbatches)
{
  // From there on, all four passes run in each period, and weight gradients have settled.
  const std::uint64_t steady = *std::max_element(block.begin(), block.end()) + period;
  // With so many micro-batches all four still run in the period from there on. More of them repeat that period.
  const std::uint64_t enough = (steady + period) / period + 1;
  const std::uint64_t unrolled_ones = std::min(microbatches, enough);
  const std::uint64_t more = microbatches - unrolled_ones;
  std::vector<Run> runs = {{1, {}}, {more + 1, {}}, {1, {}}};
  for (auto [unit, task] : unrolled(block, unrolled_ones)) {
    const std::size_t run = more == 0 || unit < steady ? 0 : unit < steady + period ? 1 : 2;
    if (run == 2) task.microbatch += more;
    runs[run].slots.push_back({task});
  }
  std::erase_if(runs, [](const Run& run) { return run.slots.empty(); });
  return Order(std::move(runs));
}

std::vector<Order> v_half_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  return repeated_on(shape, [](std::uint64_t r, std::uint64_t p) {
    const std::uint64_t pause = p % 2 == 0 ? 3 : 0;  // so that no two passes take the same unit
    return BuildingBlock{2 * r, 3 * p - r - 2, 3 * p + pause + 2 * r - 1, 6 * p + pause - r - 2};
  });
}

std::vector<Order> v_min_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  return repeated_on(shape, [](std::uint64_t r, std::uint64_t p) {
    const std::uint64_t pause = p % 3 == 0 ? 2 : 0;
    return BuildingBlock{r, 2 * p - r - 1, 2 * p + pause + r, 4 * p + pause - r - 1};
  });
}

}  // namespace isobar::schedules

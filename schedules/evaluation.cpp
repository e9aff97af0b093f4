#include "schedules/evaluation.hpp"

#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/schedule.hpp"

#include <utility>
#include <vector>

namespace isobar::schedules {

namespace {

/// The forwards of a rank with `parts` stages: `group` micro-batches through its first stage, then through its next,
/// and so on; then the next group.
///
/// All ranks follow one order of groups, stages and micro-batches, so no two wait for each other. While a group of as
/// many micro-batches as there are ranks is in one stage of a rank, the stages between are on the other ranks.
Order forwards_in_groups(std::size_t parts, std::uint64_t group, std::uint64_t microbatches)
{
  const auto forward = [](std::size_t part, std::uint64_t microbatch) {
    return Task{Opcode::Forward, static_cast<std::uint32_t>(part), microbatch};
  };
  if (parts == 1) return Order(std::vector<Run>{{microbatches, {{forward(0, 0), 1}}}});
  const std::uint64_t groups = microbatches / group;
  Run whole{groups, {}};
  for (std::size_t part = 0; part < parts; ++part) {
    for (std::uint64_t i = 0; i < group; ++i) {
      whole.slots.push_back({forward(part, i), static_cast<std::int64_t>(group)});
    }
  }
  std::vector<Run> runs = {std::move(whole)};
  for (std::size_t part = 0; part < parts; ++part) {
    runs.push_back({microbatches % group, {{forward(part, groups * group), 1}}});
  }
  return Order(std::move(runs));
}

}  // namespace

std::unique_ptr<Program> make_evaluation_program(const Plan& plan, const Workload& workload)
{
  const PipelineShape shape = shape_of(plan);
  std::vector<Order> orders;
  for (const auto& stages : stages_by_rank(shape)) {
    orders.push_back(forwards_in_groups(stages.size(), shape.ranks(), plan.goal.microbatches));
  }
  return make_program(plan, workload, std::move(orders));
}

}  // namespace isobar::schedules

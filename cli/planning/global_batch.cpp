#include "cli/planning/global_batch.hpp"

#include "allocators/other_schedules.hpp"
#include "allocators/registry.hpp"
#include "cli/planning/planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/model/model_limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::cli {

namespace {

constexpr std::size_t most_splits = 12;
constexpr std::uint64_t largest_global_batch = most_microbatches_by_recurrence * largest_micro_batch;

bool is_of_a_step(Objective objective)
{
  return objective == Objective::Step || objective == Objective::Pipeline;
}

/// All splits into at most `most` micro-batches, by ascending count.
std::vector<BatchSplit> all_splits(std::uint64_t samples, std::uint64_t most)
{
  std::vector<BatchSplit> splits;
  for (std::uint64_t count = 1; count <= std::min(samples, most); ++count) {
    if (samples % count == 0 && samples / count <= largest_micro_batch) splits.push_back({count, samples / count});
  }
  return splits;
}

/// At most most_splits of them, evenly spread, with the first and the last.
std::vector<BatchSplit> spread(const std::vector<BatchSplit>& splits)
{
  if (splits.size() <= most_splits) return splits;
  std::vector<BatchSplit> some;
  for (std::size_t i = 0; i < most_splits; ++i) some.push_back(splits[i * (splits.size() - 1) / (most_splits - 1)]);
  return some;
}

}  // namespace

std::vector<BatchSplit> batch_splits(const GoalOptions& options, const Goal& goal, const Inputs& inputs)
{
  const std::size_t parts = inputs.workload.context.degree;
  if (!options.global_batch) return {{goal.microbatches * parts, inputs.workload.micro_batch}};
  const std::string option = "--global-batch";
  const std::uint64_t samples = *options.global_batch;
  if (samples < 1 || samples > largest_global_batch) {
    throw InputError(option, fmt::format("{} is not in 1 to {}", samples, largest_global_batch));
  }
  if (!is_of_a_step(goal.objective)) {
    throw InputError(option, fmt::format("objective {} is of one micro-batch, so micro-batch sizes cannot be compared; "
                                         "use step or pipeline",
                                         name_of(goal.objective)));
  }
  const std::size_t devices = std::min(inputs.platform.cluster().devices.size(), inputs.workload.layers.size());
  const std::uint64_t most =
      options.microbatches ? most_microbatches_by_recurrence : allocators::most_microbatches(goal.schedule, devices);
  auto splits = all_splits(samples, most);
  if (options.microbatches) {
    std::erase_if(splits, [&](const BatchSplit& split) { return split.microbatches != *options.microbatches; });
    if (splits.empty()) {
      throw InputError(option, fmt::format("{} samples are not {} micro-batches of 1 to {} samples; write a multiple "
                                           "of --microbatches, or leave that option out",
                                           samples, *options.microbatches, largest_micro_batch));
    }
  }
  if (splits.empty()) {
    throw InputError(option, fmt::format("{} has no divisor that leaves at most {} micro-batches of at most {} samples",
                                         samples, most, largest_micro_batch));
  }
  splits = spread(splits);
  for (const auto& split : splits) at_micro_batch(inputs, split.micro_batch, option);
  for (auto& split : splits) split.microbatches *= parts;
  return splits;
}

allocators::SearchLimits share_of(allocators::SearchLimits limits, const std::vector<BatchSplit>& splits)
{
  if (limits.time_limit) *limits.time_limit = *limits.time_limit / static_cast<double>(splits.size());
  return limits;
}

Plan make_best_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                    const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits)
{
  const auto each = share_of(limits, splits);
  std::optional<Plan> best;
  for (const auto& split : splits) {
    Goal split_goal = goal;
    split_goal.microbatches = split.microbatches;
    const Workload workload = at_micro_batch(inputs, split.micro_batch, "--global-batch");
    Plan plan = allocators::allocate(allocator, workload, inputs.platform.cluster(), split_goal, each);
    record_inputs(plan, inputs, split.micro_batch);
    if (!best || best->stages.empty() || (!plan.stages.empty() && *plan.objective < *best->objective)) {
      best = std::move(plan);
    }
  }
  return std::move(best).value();
}

}  // namespace isobar::cli

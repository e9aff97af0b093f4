#pragma once

#include "allocators/allocator.hpp"
#include "cli/goal_options.hpp"
#include "cli/inputs.hpp"
#include "core/plan/plan.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::cli {

/// One way to divide the samples of a step into micro-batches.
struct BatchSplit {
  std::uint64_t microbatches = 1;  ///< or parts of them, where sequences are divided
  std::uint64_t micro_batch = 1;   ///< samples of each
};

/// The splits to plan for, by ascending number of micro-batches. Without --global-batch: the one of goal and workload.
/// With it: every split of the global batch into at most as many micro-batches as the schedule of the goal takes on all
/// devices (allocators::most_microbatches), or 12 of them when there are more. With --microbatches too: only the split
/// with that number, whatever the schedule.
/// @throws InputError naming --global-batch when there is no such split, when the objective is not that of a whole
/// step, or when the workload has only one micro-batch size.
std::vector<BatchSplit> batch_splits(const GoalOptions& options, const Goal& goal, const Inputs& inputs);

/// The limits of the search for one split: the time limit is divided among all of them.
allocators::SearchLimits share_of(allocators::SearchLimits limits, const std::vector<BatchSplit>& splits);

/// Plans for each split and returns the plan with the least objective, or the one of the smallest micro-batch when none
/// has stages. The time limit is for all splits together.
Plan make_best_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                    const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);

}  // namespace isobar::cli

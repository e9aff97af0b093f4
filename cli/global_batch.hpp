#pragma once

#include "cli/command.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::cli {

/// One way to divide the samples of a step.
struct BatchSplit {
  std::uint64_t microbatches = 1;
  std::uint64_t micro_batch = 1;  ///< samples of each
};

/// The splits that are planned for, by ascending count of micro-batches. Without --global-batch the one of goal and
/// workload. Else every split of the global batch, or 12 spread over them where there are more: their counts divide it,
/// and are at most most_microbatches_by_recurrence. With --microbatches that count alone.
/// @throws InputError naming --global-batch when nothing divides it so, when the objective is not of a whole step, or
/// when the workload has one micro-batch size only.
std::vector<BatchSplit> batch_splits(const GoalOptions& options, const Goal& goal, const Inputs& inputs);

/// The limits of a search for one split, where a time limit is for all of them.
allocators::SearchLimits share_of(allocators::SearchLimits limits, const std::vector<BatchSplit>& splits);

/// Plans for each split and returns the plan with the least objective; where none has stages, that of the smallest
/// micro-batch. A time limit is for all of them.
Plan make_best_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                    const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);

}  // namespace isobar::cli

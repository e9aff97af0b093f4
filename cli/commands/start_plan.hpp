#pragma once

#include "allocators/allocator.hpp"
#include "cli/goal_options.hpp"
#include "cli/inputs.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// Reads the plan that a search starts from. @throws InputError for one without stages, and for stages that no search
/// improves.
Plan read_start(const std::string& file);

/// Whether a search moves the cuts of such a plan alone: devices have several stages, or stages several devices.
bool has_only_cuts_to_move(const Plan& start);

/// Refuses options for what such a start says itself. `others` are of the command: names of options that are given.
/// @throws InputError naming the option.
void refuse_goal_beside(const Plan& start, const std::string& file, const GoalOptions& goal,
                        const std::vector<std::string>& others);

/// Checks that a start holds on these inputs, but for its bound. @throws InputError with every fault.
void check_start(const Plan& start, const std::string& file, const Inputs& inputs);

/// Gives a search its start, which holds on these inputs.
void start_from(const Plan& start, const Inputs& inputs, allocators::SearchLimits& limits);

}  // namespace isobar::cli

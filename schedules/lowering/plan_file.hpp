#pragma once

#include "core/plan/plan.hpp"

#include <filesystem>

namespace isobar::schedules {

/// Reads a plan file whose schedule has orders for the plan's stages, so that make_program makes its Program. A plan
/// without stages needs none.
/// @throws InputError as read_plan does, and with file and line for a schedule that is not known, for numbers and
/// orders that it does not take, for those that do not fit the stages, for residences that contradict each other or the
/// orders, and for rules of transfers that the Program cannot keep.
Plan read_scheduled_plan(const std::filesystem::path& file);

}  // namespace isobar::schedules

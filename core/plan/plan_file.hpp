#pragma once

#include "core/plan/plan.hpp"

#include <filesystem>
#include <functional>

namespace isobar {

class FaultList;
class MappingReader;

/// Reads a plan file, and passes the plan to `check_schedule`, which knows the schedules and throws InputError.
/// @throws InputError as read_plan(file) does, and with the faults of the check behind the file and the line of the
/// stage that they name, else of "schedule".
Plan read_plan(const std::filesystem::path& file, const std::function<void(const Plan&)>& check_schedule);

/// Reads the settings of an object `workload` with a fingerprint: "set": {"layers": "48"}; none if it has no such
/// member.
WorkloadSettings read_settings(MappingReader& workload, FaultList& faults);

}  // namespace isobar

#pragma once

#include "allocators/allocator.hpp"
#include "cli/inputs.hpp"
#include "core/compute/prediction_interval.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::cli {

/// Plans with an allocator and records in the plan what it was made for.
Plan make_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
               const allocators::SearchLimits& limits);

/// Records in a plan what it was made for: the inputs, the devices that they leave out, and the micro-batch where it
/// differs from that of the inputs.
void record_inputs(Plan& plan, const Inputs& inputs, std::uint64_t micro_batch);

/// What is known of a step of a plan of these inputs that takes `step` (compute::basis_of); none with compute: rate,
/// and for plans without a training system.
std::optional<compute::StepBasis> basis_of_step(const Inputs& inputs, const Plan& plan, Seconds step);

/// What differs between the inputs that a plan was made for and these, a line each; `file` is the plan's.
std::vector<std::string> other_inputs_of(const Plan& plan, const std::string& file, const Inputs& inputs);

/// The faults of a plan under any schedule, without its certificate: of a chain as `faults_of` finds them; of others
/// also those of its Program, and of what playing that shows. O(instructions of a step) for these.
/// @throws InputError for numbers or orders that do not fit the stages, and for a step that is too long to be played.
std::vector<std::string> all_faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// Refuses a plan that does not hold on its inputs, and reports what differs. A plan that was made for other inputs but
/// holds passes with a warning: the user may want to try a platform that differs only in its links. `file`: the plan's.
/// @throws InputError with every fault.
void check_plan(const Plan& plan, const std::string& file, const Inputs& inputs);

/// "chain" for a plan whose stages have a device each, "plan" for others and for one without stages.
std::string_view kind_of(const Plan& plan);

/// The plans that a plan's bound holds for, in the singular: a bound of a chain is one over chains alone, and one of
/// DT-FM's cost is one over plans with as many replicas of the same stages.
std::string_view scope_of_bound(const Plan& plan);

/// Why a plan has no stages, on one line; cut when it is long.
std::string reason_of(const Plan& plan);

/// The program of an allocator exec:PROGRAM; "" for others.
std::string program_of(const std::string& allocator);

}  // namespace isobar::cli

#pragma once

#include "allocators/allocator.hpp"
#include "cli/inputs.hpp"
#include "core/plan/plan.hpp"

#include <cstdint>
#include <string>

namespace isobar::cli {

/// Plans with an allocator and records in the plan what it was made for.
Plan make_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
               const allocators::SearchLimits& limits);

/// Records in a plan what it was made for: the inputs, and the micro-batch where it differs from that of the inputs.
void record_inputs(Plan& plan, const Inputs& inputs, std::uint64_t micro_batch);

/// Why a plan has no stages, on one line; cut when it is long.
std::string reason_of(const Plan& plan);

/// The program of an allocator exec:PROGRAM; "" for others.
std::string program_of(const std::string& allocator);

}  // namespace isobar::cli

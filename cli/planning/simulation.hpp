#pragma once

#include "cli/inputs.hpp"
#include "core/plan/plan.hpp"

#include <cstdint>
#include <string>

namespace isobar::cli {

/// Simulates a plan in this process and returns the result (a Result of results/result.hpp) as JSON. Can be called once
/// per process. `trace_file`: the Chrome trace to write, or "".
///
/// In a long step some of several equal devices act for all (schedules::fold), unless it is `unfolded` or its trace is
/// written; then links are those of the devices that act.
std::string simulate_plan(const Inputs& inputs, const Plan& plan, std::uint64_t iterations,
                          const std::string& trace_file, bool unfolded = false);

/// The stamp that lets isobar-exec check that a plan was simulated as it is. `result_json`: what simulate_plan
/// returned.
Stamp stamp_of(const std::string& result_json, const Plan& plan, const Inputs& inputs);

}  // namespace isobar::cli

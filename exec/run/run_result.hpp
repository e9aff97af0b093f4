#pragma once

#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/rank/rank_report.hpp"

#include <string>

namespace isobar::exec {

/// Result of a run.
struct RunResult {
  std::string json;     ///< schema isobar-run/1 (docs/formats/run.md), ends with a line break
  std::string summary;  ///< table for the terminal
  std::string note;     ///< that a machine was busy during the run; "" if none was
};

/// Summarises a run. `samples`: per step.
RunResult result_of(const Plan& plan, const MeasuredRun& measured, double samples);

/// Whether a machine updates a part a step late, so that losses are not those of other plans.
bool updates_late(const Plan& plan);

/// The measured timeline as a Chrome trace. `program`: the one that was executed.
std::string trace_of(const Plan& plan, const Program& program, const MeasuredRun& measured);

}  // namespace isobar::exec

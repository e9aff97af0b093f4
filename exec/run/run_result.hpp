#pragma once

#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/run/rank_report.hpp"

#include <string>

namespace isobar::exec {

/// What a run comes to.
struct RunResult {
  std::string json;     ///< schema isobar-run/1 (docs/formats.md), with a line break at its end
  std::string summary;  ///< for people
  std::string note;     ///< that a machine was busy meanwhile; "" else
};

/// `samples`: of a step.
RunResult result_of(const Plan& plan, const Program& program, const MeasuredRun& measured, double samples);

/// The measured timeline as a Chrome trace.
std::string trace_of(const Plan& plan, const MeasuredRun& measured);

}  // namespace isobar::exec

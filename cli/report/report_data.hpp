#pragma once

#include "results/report/report.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// Of what a report, or a chart of one, is made.
struct ReportInputs {
  std::vector<std::string> results;  ///< files of isobar simulate -o or isobar compare --keep
  std::string measured;              ///< a trace of isobar run, or ""
  std::string target;                ///< what will be written, or ""; it must be none of the files that are read
  bool asks_what_if = true;
  bool plans_anew = false;  ///< also lets each plan's allocator answer to every change
};

/// isobar-report/1 of results that were simulated on the same files: simulates the first step of each again, in a child
/// of its own, and once for each change of the platform that is tried, as many at a time as there are cores.
/// @throws InputError when a file is no result, when what a result was simulated on is gone or has changed, or when it
/// was simulated on other files than the first one.
std::string make_report(const ReportInputs& inputs);

}  // namespace isobar::cli

#pragma once

#include "results/report/report.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// The inputs of a report, or of a chart.
struct ReportInputs {
  std::vector<std::string> results;  ///< of simulate -o or compare --keep; of cluster -o; or one of simulate --mix -o
  std::string measured;              ///< a trace of isobar run, or ""
  std::string trace;                 ///< a trace of a mix, or ""
  std::string target;                ///< the file to write, or ""; must not be one that is read
  bool asks_what_if = true;          ///< simulates changes of the platform
  bool replans = false;              ///< also plans for every change, with the allocator of each plan
};

/// Makes a report (isobar-report/1) of results that were simulated on the same files. Simulates of each the first
/// step that counts again, and once more for each change of the platform, in child processes, as many at a time as
/// there are cores.
/// Or shows schedules, if the files hold jobs of `isobar cluster -o`, or a mix with its trace.
/// @throws InputError when a file is not a result, when the files of a result are missing or have changed, or when it
/// was simulated on other files than the first result.
std::string make_report(const ReportInputs& inputs);

/// What the files hold. @throws InputError when they are of several kinds.
enum class Reported { Plans, Schedules, Mix };
Reported reported_in(const std::vector<std::string>& files);

}  // namespace isobar::cli

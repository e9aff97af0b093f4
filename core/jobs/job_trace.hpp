#pragma once

#include "core/jobs/job.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// Rows of a trace that are no job of ours, by reason.
struct LeftOut {
  std::string reason;
  std::uint64_t rows = 0;
};

/// Training jobs that arrive over time.
struct JobTrace {
  std::string format;              ///< one of `trace_formats()`
  bool has_drawn_models = false;   ///< the trace has durations alone; models are drawn
  std::vector<Job> jobs;           ///< by arrival, which begins at 0; equal ones in the order of the file
  std::vector<LeftOut> left_out;   ///< reasons with rows, in the order in which they were met
  std::vector<std::string> files;  ///< that were read: the trace, and the header of a PAI trace

  void leave_out(const std::string& reason);
};

/// "; 3 rows left out: never ran" for each reason; "" if there is none.
std::string text_of_left_out(const JobTrace& trace);

/// muri, helios (Acme's too), pai and philly: docs/formats/job_trace.md.
const std::vector<std::string>& trace_formats();

struct TraceOptions {
  std::string format;            ///< "": by the content
  std::filesystem::path header;  ///< of a PAI trace; "": the trace's name with the ending .header
  std::uint64_t seed = 0;        ///< of drawn models
};

/// Reads a trace. Jobs of traces without steps draw one of the measured models each, uniformly, and get as many steps
/// as fit into their duration. Takes memory of some 10 times the file.
/// @throws InputError with every fault of the file.
JobTrace read_job_trace(const std::filesystem::path& file, const TraceOptions& options);

}  // namespace isobar

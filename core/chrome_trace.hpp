#pragma once

#include "core/trace.hpp"

#include <ostream>
#include <string>
#include <vector>

namespace isobar {

/// Writes a trace as Chrome trace JSON (docs/formats.md), which ui.perfetto.dev and chrome://tracing open: a process
/// per device, a track per lane, an event per instruction, times in microseconds. Writes as it goes; O(1) memory.
class ChromeTraceWriter : public TraceSink {
 public:
  /// `ranks` names the device of each rank, the data server's last. `finish` must follow the last event.
  ChromeTraceWriter(std::ostream& out, const std::vector<std::string>& ranks);
  void record(const TraceEvent& event) override;
  void finish();

 private:
  std::ostream* out_;
};

}  // namespace isobar

#pragma once

#include "core/program/trace.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace isobar {

/// What a timeline calls it: "Forward 3", "Send activation 3", "Update".
std::string name_of_event(const Instruction& instruction);

/// Writes a trace as Chrome trace JSON (docs/formats.md), which ui.perfetto.dev and chrome://tracing open: a process
/// per device, a track per lane, an event per instruction, an arrow per transfer, a counter for the memory of each
/// device and the transfers on each link, times in microseconds. Writes as it goes: memory for the links, and for the
/// transfers that one end has ended and the other has not.
class ChromeTraceWriter : public TraceSink {
 public:
  /// `ranks` names the device of each rank, the data server's last, and `sites` where each stands ("": not known; none
  /// at all where no site is). `finish` must follow the last event.
  ChromeTraceWriter(std::ostream& out, const std::vector<std::string>& ranks,
                    const std::vector<std::string>& sites = {});
  void record(const TraceEvent& event) override;
  void memory_changed(std::size_t rank, Seconds time, Bytes memory) override;
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override;
  void finish();

 private:
  /// A transfer by its receiving end: step, rank, lane, position.
  using Receive = std::tuple<std::uint64_t, std::size_t, Lane, std::uint64_t>;
  struct Recorded {
    std::uint64_t step = 0;
    std::uint64_t instructions = 0;  ///< of that step
  };

  /// How many of the lane's instructions came before this one in its step.
  std::uint64_t position_of(const TraceEvent& event);
  void record_end_of_arrow(const TraceEvent& event, std::uint64_t position);

  std::ostream* out_;
  std::vector<std::array<Recorded, lane_count>> recorded_;  // by rank
  std::map<Receive, std::uint64_t> arrows_;                 // of which one end is written
  std::uint64_t next_arrow_ = 1;
  std::map<std::string, std::string> links_;  // as JSON spells them
};

}  // namespace isobar

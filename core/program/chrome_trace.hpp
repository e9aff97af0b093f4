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

/// The name of an instruction in a timeline: "Forward 3", "Send activation 3", "Update".
std::string name_of_event(const Instruction& instruction);

/// Writes a trace as Chrome trace JSON (docs/formats/trace.md), which ui.perfetto.dev and chrome://tracing open. There
/// is a process per device, a track per lane, an event per instruction and an arrow per transfer. Counters show the
/// memory of each device and the transfers on each link. Times are in microseconds. Streams its output: it uses memory
/// only for the links and for transfers of which only one end has been recorded.
class ChromeTraceWriter : public TraceSink {
 public:
  /// `ranks` names the device of each rank, the data server last. `sites` names the site of each rank ("" if unknown),
  /// or is empty if no site is known. `finish` must follow the last event.
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

  /// The number of instructions of the lane before this one in its step.
  std::uint64_t position_of(const TraceEvent& event);
  void record_end_of_arrow(const TraceEvent& event, std::uint64_t position);

  std::ostream* out_;
  std::vector<std::array<Recorded, lane_count>> recorded_;  // by rank
  std::map<Receive, std::uint64_t> arrows_;                 // arrows of which one end is written
  std::uint64_t next_arrow_ = 1;
  std::map<std::string, std::string> links_;  // as JSON spells them
};

}  // namespace isobar

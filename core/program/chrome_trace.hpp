#pragma once

#include "core/program/trace.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace isobar {

/// The name of an instruction in a timeline: "Forward 3", "Send activation 3", "AllReduce gradient facts", "Update".
std::string name_of_event(const Instruction& instruction);

/// A program whose trace is written.
struct TracedProgram {
  const Program* program = nullptr;  ///< must outlive the writer
  std::vector<std::string> ranks;    ///< the name of each rank: its device, and the data server last
  std::vector<std::string> sites;    ///< of each rank ("" if unknown); empty if no site is known
};

/// Writes a trace as Chrome trace JSON (isobar-trace/2, docs/formats/trace.md), which ui.perfetto.dev and
/// chrome://tracing open. There is a process per device, a track per lane, an event per instruction and an arrow per
/// transfer. Counters show the memory of each device and the transfers on each link. Times are in microseconds. Streams
/// its output: it uses memory only for ranks, channels and links.
///
/// Of several programs that are played side by side, ranks and channels are numbered one after the other. A track
/// "turns" of each rank then shows when it waits for its device and when it holds it.
class ChromeTraceWriter : public TraceSink {
 public:
  /// Writes the trace of `program`, which must outlive the writer. `ranks` names the device of each rank, the data
  /// server last. `sites` names the site of each rank ("" if unknown), or is empty if no site is known. `finish` must
  /// follow the last event. Looks at every instruction of the compute lanes.
  ChromeTraceWriter(std::ostream& out, const Program& program, const std::vector<std::string>& ranks,
                    const std::vector<std::string>& sites = {});
  /// Writes the trace of programs that take turns.
  ChromeTraceWriter(std::ostream& out, const std::vector<TracedProgram>& programs)
      : ChromeTraceWriter(out, programs, true)
  {
  }
  /// Writes what happens to a rank, here and below, of the first program.
  void record(const TraceEvent& event) override;
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override;
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override;
  void device_held(std::size_t rank, Seconds asked, Seconds got, Seconds given_back) override;
  /// The sink of a program. It ignores the changes of links, which the writer itself takes.
  TraceSink& sink_of(std::size_t program) { return *sinks_.at(program); }
  void finish();

 private:
  struct Rank {
    bool has_several_stages = false;          ///< then the names of its events end in the stage
    std::array<bool, tier_count> holds = {};  ///< tiers in which it has held memory
  };

  /// A program, and where its numbers begin.
  class Part : public TraceSink {
   public:
    Part(ChromeTraceWriter& writer, const Program& program, std::size_t first_rank, std::size_t first_channel)
        : writer_(&writer), program_(&program), first_rank_(first_rank), first_channel_(first_channel)
    {
    }
    void record(const TraceEvent& event) override;
    void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override;
    void device_held(std::size_t rank, Seconds asked, Seconds got, Seconds given_back) override;

   private:
    std::size_t channel_of(const TraceEvent& event) const;
    void record_end_of_arrow(const TraceEvent& event, std::size_t channel);

    ChromeTraceWriter* writer_;
    const Program* program_;
    std::size_t first_rank_;
    std::size_t first_channel_;
  };

  ChromeTraceWriter(std::ostream& out, const std::vector<TracedProgram>& programs, bool has_turns);
  std::string metadata_of(const TracedProgram& program, bool has_turns);

  std::ostream* out_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Part>> sinks_;  // by program
  std::vector<std::uint64_t> first_arrow_;    // of a step, by channel
  std::uint64_t arrows_ = 0;                  // of a step
  std::map<std::string, std::string> links_;  // as JSON spells them
};

}  // namespace isobar

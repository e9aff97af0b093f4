#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "results/trace/timeline.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace isobar::results {

/// By sending and receiving rank.
using BytesBetweenRanks = std::map<std::pair<std::size_t, std::size_t>, Bytes>;

/// Memory over time: from `times[i]` to the next time it is `bytes[i]`. Times ascend.
struct MemoryCurve {
  std::vector<Seconds> times;
  std::vector<Bytes> bytes;
};

/// Instructions of one step for drawing, without receives. A simulated send lasts while its bytes leave the sender.
/// Times are relative to the end of the step before, before which instructions may begin.
struct RecordedStep {
  std::vector<std::vector<Lane>> lanes;  ///< of the program, by rank
  std::vector<TraceEvent> events;        ///< of the step, in the order of recording; their step is 0
  std::vector<TraceEvent> next;          ///< of the next step, 1, those that begin before this one ends
  std::uint64_t instructions = 0;        ///< number in the step, kept or not
  /// What each rank holds of each tier, by rank and Tier, from the begin of the first instruction or the end of the
  /// step before, whichever is earlier, to the end of the step, or of the last instruction that is kept. Counts what
  /// instructions of neighbouring steps hold in that time, too. Empty for a tier of which nothing is known.
  std::vector<std::array<MemoryCurve, tier_count>> memory;
  BytesBetweenRanks sent;    ///< of activations and their gradients, and all that is sent in a grid of shards
  BytesBetweenRanks synced;  ///< of the gradients of parameters, and of parameters
};

/// A sink that records one step of a trace.
class StepRecorder : public TraceSink {
 public:
  /// Keeps the first `most` instructions of step `step` of a trace of `program`, or of it and the next one, and counts
  /// the others of the step.
  StepRecorder(const Program& program, std::size_t most, std::uint64_t step = 0);
  void record(const TraceEvent& event) override;
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override;
  RecordedStep recorded() const;

 private:
  /// Whether the event is a collective among the shards of a replica, of activations or in a grid.
  bool is_of_shards(const TraceEvent& event) const;
  bool is_cut() const { return step_.events.size() < step_.instructions; }
  void count_traffic(const TraceEvent& event);

  std::size_t most_;
  std::uint64_t number_;
  std::vector<Channel> channels_;
  std::map<std::size_t, std::size_t> grid_of_;  // by rank in one
  RecordedStep step_;                           // in the trace's times
  Seconds before_;                              // end of the step before
  Seconds end_;                                 // of what the curves show
};

/// Passes one step of a timeline to a sink as step 0, and the next one, if there is one, as step 1, sorted by end.
/// Times are relative to the end of the previous step, before which instructions may begin. Memory is what the program
/// holds throughout, and what its instructions acquire and release at the times of the timeline.
void record_step(const Timeline& timeline, std::uint64_t step, TraceSink& sink);

}  // namespace isobar::results

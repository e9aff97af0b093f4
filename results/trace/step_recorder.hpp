#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "results/trace/timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace isobar::results {

/// By sending and receiving rank.
using BytesBetweenRanks = std::map<std::pair<std::size_t, std::size_t>, Bytes>;

/// Instructions of one step for drawing, without receives. A simulated send lasts while its bytes leave the sender.
struct RecordedStep {
  std::vector<std::vector<Lane>> lanes;  ///< of the program, by rank
  std::vector<TraceEvent> events;        ///< in the order of recording
  std::uint64_t instructions = 0;        ///< number in the step, kept or not
  BytesBetweenRanks sent;    ///< of activations and their gradients, and all that is sent in a grid of shards
  BytesBetweenRanks synced;  ///< of the gradients of parameters, and of parameters
};

/// A sink that records the first step of a trace.
class StepRecorder : public TraceSink {
 public:
  /// Keeps the first `most` instructions of a trace of `program` and counts the others.
  StepRecorder(const Program& program, std::size_t most);
  void record(const TraceEvent& event) override;
  const RecordedStep& recorded() const { return recorded_; }

 private:
  /// Whether the event is a collective among the shards of a replica, of activations or in a grid.
  bool is_of_shards(const TraceEvent& event) const;

  std::size_t most_;
  std::vector<Channel> channels_;
  std::map<std::size_t, std::size_t> grid_of_;  // by rank in one
  RecordedStep recorded_;
};

/// Passes one step of a timeline to a sink, sorted by end. Times are relative to the end of the previous step, before
/// which instructions may begin.
void record_step(const Timeline& timeline, std::uint64_t step, TraceSink& sink);

}  // namespace isobar::results

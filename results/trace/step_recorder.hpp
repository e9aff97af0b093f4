#pragma once

#include "core/program/trace.hpp"
#include "results/trace/timeline.hpp"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace isobar::results {

/// What a picture of one step needs: its instructions without the receives. A simulated send spans the time in which
/// its bytes left.
struct RecordedStep {
  std::vector<TraceEvent> events;  ///< as they were recorded
  std::uint64_t instructions = 0;  ///< of the step, kept or not
  /// Activations and gradients, by sending and receiving rank.
  std::map<std::pair<std::size_t, std::size_t>, Bytes> sent;
};

/// Records the first step of a trace.
class StepRecorder : public TraceSink {
 public:
  /// Keeps the first `most` instructions that are recorded, and counts the others.
  explicit StepRecorder(std::size_t most) : most_(most) {}
  void record(const TraceEvent& event) override;
  const RecordedStep& recorded() const { return recorded_; }

 private:
  std::size_t most_;
  RecordedStep recorded_;
};

/// Passes one step of a timeline to a sink, in the order of ends, with times from the end of the step before it.
void record_step(const Timeline& timeline, std::uint64_t step, TraceSink& sink);

}  // namespace isobar::results

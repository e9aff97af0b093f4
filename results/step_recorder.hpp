#pragma once

#include "core/trace.hpp"
#include "results/timeline.hpp"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace isobar::results {

/// What a picture of one step needs: its instructions but for receives, which end as their sends do.
struct RecordedStep {
  std::vector<TraceEvent> events;  ///< in the order of their ends
  std::uint64_t instructions = 0;  ///< of the step, kept or not
  /// Activations and gradients, by sending and receiving rank.
  std::map<std::pair<std::size_t, std::size_t>, Bytes> sent;
};

/// Records the first step of a trace.
class StepRecorder : public TraceSink {
 public:
  /// Keeps `most` instructions, those that end first, and counts the others.
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

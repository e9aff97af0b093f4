#pragma once

#include "sim/play/channels.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstdint>
#include <vector>

namespace isobar::sim {

/// SimGrid's flows: the data of messages, without their latency.
class Flows {
 public:
  Flows(SimulationState& state, const Channels& channels) : state_(state), channels_(channels) {}

  /// Starts the data of `send.arriving`.
  void start(LaneState& send) { start(send, send.arriving.bytes); }
  /// Follows a bandwidth profile. SimGrid bounds some flows by the bandwidth at their start; if these may now be
  /// faster, they are started again with the bytes that remain. O(lanes) for a link that carries data.
  void bandwidth_changed(const sg4::Link& link);
  /// Releases a flow that `bandwidth_changed` cancelled, when it ends. @throws std::logic_error for any other.
  sg4::ActivityPtr release_cancelled(const sg4::Activity& activity);

 private:
  void start(LaneState& send, std::uint64_t bytes);

  SimulationState& state_;
  const Channels& channels_;
  std::vector<sg4::ActivityPtr> cancelled_;
};

}  // namespace isobar::sim

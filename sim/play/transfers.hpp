#pragma once

#include "sim/play/lanes.hpp"
#include "sim/play/link_turns.hpp"
#include "sim/play/links.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/streams.hpp"

#include <optional>

namespace isobar::sim {

/// Sends and receives: the messages of a lane are a stream to the lane at the other end of its channel. Where links
/// take turns, a message holds those of its route from the start of its latency until its last byte has arrived.
class Transfers {
 public:
  /// `turns`: of the links; none if all share them.
  Transfers(SimulationState& state, Lanes& lanes, Streams& streams, std::optional<LinkTurns>& turns)
      : state_(state), lanes_(lanes), streams_(streams), turns_(turns)
  {
  }

  /// Starts the transfer that is the turn of the lane, if the other end is ready too. Both lanes then proceed to their
  /// next instruction at once. A message within a host arrives at once.
  void try_to_start(LaneState& lane);
  /// Ends the transfer whose last byte has arrived, and starts the data of the next one.
  void complete(Stream& stream);

 private:
  void start(LaneState& send, LaneState& receive);

  SimulationState& state_;
  Lanes& lanes_;
  Streams& streams_;
  std::optional<LinkTurns>& turns_;
};

}  // namespace isobar::sim

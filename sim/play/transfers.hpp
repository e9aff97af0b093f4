#pragma once

#include "sim/play/lanes.hpp"
#include "sim/play/links.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/streams.hpp"

namespace isobar::sim {

/// Sends and receives: the messages of a lane are a stream to the lane at the other end of its channel.
class Transfers {
 public:
  Transfers(SimulationState& state, Lanes& lanes, Streams& streams) : state_(state), lanes_(lanes), streams_(streams) {}

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
};

}  // namespace isobar::sim

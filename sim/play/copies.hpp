#pragma once

#include "sim/play/lanes.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/streams.hpp"

namespace isobar::sim {

/// Loads and stores between a device and the machine that it is in, and reads and writes of the machine's disk. A copy
/// occupies its lane until its last byte has arrived: latency + data. Copies share links and disks as SimGrid has it.
class Copies {
 public:
  Copies(SimulationState& state, Lanes& lanes, Streams& streams) : state_(state), lanes_(lanes), streams_(streams) {}

  /// Starts the copy that is the turn of the lane. @throws InputError for a rank without the machine or disk that it
  /// needs, and when a host or link is off.
  void start(LaneState& lane);
  /// Ends a load or a store whose last byte has arrived.
  void complete(const Stream& stream);
  /// Handles a machine that was turned on or off. @throws InputError when it is off and its disk is in use: SimGrid
  /// lets disks of such hosts continue.
  void machine_switched(const sg4::Host& host) const;

 private:
  void start_on_links(LaneState& lane);
  void start_on_disk(LaneState& lane);

  SimulationState& state_;
  Lanes& lanes_;
  Streams& streams_;
};

}  // namespace isobar::sim

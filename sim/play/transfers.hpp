#pragma once

#include "sim/play/channels.hpp"
#include "sim/play/flows.hpp"
#include "sim/play/lanes.hpp"
#include "sim/play/simulation_state.hpp"

namespace isobar::sim {

/// Messages between ranks: their latency passes first, then their data flows, one message of a lane after the other.
class Transfers {
 public:
  Transfers(SimulationState& state, Lanes& lanes, Channels& channels, Flows& flows)
      : state_(state), lanes_(lanes), channels_(channels), flows_(flows)
  {
  }

  /// Starts the transfer that is next on both lanes. Each lane then proceeds to its next instruction at once.
  void start(LaneState& send, LaneState& receive);
  /// Ends the transfer whose last byte has arrived, and starts the data of the next ones.
  void complete(LaneState& send);

  /// Sends `size` bytes to the peer of the lane's current instruction. The data of a part of an AllReduce waits for no
  /// other message.
  /// @throws InputError when a host or a link on its route is off.
  void put_on_its_way(LaneState& send, Bytes size);

  /// Handles a link that was turned on or off. @throws InputError when it is off and a message is in transit over it:
  /// SimGrid ends flows, but does not know messages whose latency has not passed.
  void link_switched(const sg4::Link& link) const;
  /// Removes all timers. Needed before the process exits.
  void remove_timers();

 private:
  void let_arrive(LaneState& send);
  void wait_until_due(LaneState& send);
  LaneState& receiver(const LaneState& send, const Message& message)
  {
    return state_.ranks[message.channel->to].lane(other_end(send.lane));
  }

  SimulationState& state_;
  Lanes& lanes_;
  Channels& channels_;
  Flows& flows_;
};

}  // namespace isobar::sim

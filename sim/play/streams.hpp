#pragma once

#include "sim/platform/simgrid_compat.hpp"
#include "sim/play/links.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace isobar::sim {

/// No limit of a hop but that of its route.
inline constexpr BytesPerSecond unlimited{std::numeric_limits<double>::infinity()};

/// Messages between ranks: their latency passes first, then their data flow in SimGrid, one message of a stream after
/// the other.
class Streams {
 public:
  Streams(SimulationState& state, Links& links) : state_(state), links_(links) {}

  /// A new stream, which lives as long as the simulation. `receiver`: see Stream.
  Stream& create(LaneState* receiver = nullptr);
  /// The hop between hosts of ranks. @throws InputError without a route.
  const Hop& hop(sg4::Host& from, sg4::Host& to);
  /// Sets the lane that sends and the rank of its job that receives. Call while the stream has no messages.
  /// @throws InputError without a route.
  void connect(Stream& stream, LaneState& sender, std::size_t to);
  /// Sets the lane for which data go and the hosts between which they do, at `most` at the rate given (see Links::hop).
  void connect(Stream& stream, LaneState& sender, sg4::Host& from, sg4::Host& to, BytesPerSecond most = unlimited);

  /// Sends data for the turn of the sender: `size` in all, as `messages` messages that each pay the latency, after a
  /// delay. For a hop between different hosts. @throws InputError when a host or a link of the hop is off.
  void send(Stream& stream, std::uint64_t messages, Bytes size, Seconds delay = Seconds(0));
  /// Releases the links of the data that have arrived.
  void release(const Stream& stream) { links_.release(*stream.hop, stream.arriving.bytes); }
  /// Starts the data of the next message, once it is due and nothing that comes before it is still arriving.
  void let_arrive(Stream& stream);

  /// Follows a bandwidth profile. SimGrid bounds some flows by the bandwidth at their start; if these may now be
  /// faster, they are started again with the bytes that remain. O(streams) for a link that carries data.
  void bandwidth_changed(const sg4::Link& link);
  /// Handles a link that was turned on or off. @throws InputError when it is off and a message is in transit over it:
  /// SimGrid ends flows, but does not know messages whose latency has not passed.
  void link_switched(const sg4::Link& link) const;
  /// Removes all timers. Needed before the process exits.
  void remove_timers();

 private:
  void wait_until_due(Stream& stream);
  void start_data(Stream& stream, std::uint64_t bytes);

  SimulationState& state_;
  Links& links_;
  NetworkModel& network_ = network_model();
};

}  // namespace isobar::sim

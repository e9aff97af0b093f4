#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "sim/platform/platform.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <vector>

/// What the parts of a simulation share while a program is played: ranks, their lanes, and messages between them.
namespace isobar::sim {

struct LinkState {
  explicit LinkState(const sg4::Link& link) : name(link.get_name()) {}

  std::string name;
  std::uint64_t bytes = 0;
  Seconds busy_time;
  Seconds busy_since;
  std::size_t transfers = 0;  // that have data on the link
};

/// The route from one rank to another; looked up once.
struct Channel {
  std::size_t to = 0;
  Route route;
  std::vector<LinkState*> links;  // of route.links, in the same order
};

/// A transfer that both ends have begun, or a part of an AllReduce.
struct Message {
  const Channel* channel = nullptr;
  Seconds ready;
  Seconds latency;  // of its route when it was ready
  std::uint64_t bytes = 0;

  /// When its first byte arrives, unless earlier messages are still arriving.
  Seconds due() const { return ready + latency; }
};

struct LaneState {
  std::size_t rank = 0;
  Lane lane = Lane::Compute;
  std::uint64_t length = 0;
  std::uint64_t started = 0;  // of a compute lane: as `completed`; of others: messages in transit count too
  std::uint64_t completed = 0;
  Instruction turn;         // instruction `started`, unless the lane is at its end
  Instruction first;        // of a transfer lane: instruction `completed`, once it is in transit
  bool running = false;     // of the compute lane
  bool has_joined = false;  // the AllReduce whose turn it is
  Seconds begin;            // of the computation, or of the data that arrives
  Bytes memory;             // of the rank, at `begin`
  sg4::ActivityPtr activity;
  // Of a lane that sends, and of a part of an AllReduce:
  const Channel* channel = nullptr;  // the last one looked up
  std::deque<Message> on_the_way;    // none of their bytes has arrived
  Message arriving;                  // its data is what the activity transfers
  Timer* timer = nullptr;            // for the first of `on_the_way`
  Seconds left;                      // when the bytes of the previous message had left
  BytesPerSecond fixed_bound;        // SimGrid lets the flow be no faster, whatever a bandwidth profile does
  // Of a lane that receives:
  std::deque<LaneState*> senders;  // of the messages in transit, in the lane's order

  bool at_end() const { return started == length; }
  bool is_all_reduce() const { return turn.opcode == Opcode::AllReduce; }
  bool uses_network() const { return lane != Lane::Compute || is_all_reduce(); }
  /// The instruction that it computes, or the first one that it transfers.
  const Instruction& under_way() const { return lane == Lane::Compute ? turn : first; }
};

struct RankState {
  sg4::Host* host = nullptr;
  bool host_is_on = true;
  double host_flops_per_flop = 0;  // host speed / device speed
  FlopsPerSecond speed;
  Bytes memory;
  std::array<LaneState, lane_count> lanes;

  LaneState& lane(Lane which) { return lanes[static_cast<std::size_t>(which)]; }
  const LaneState& lane(Lane which) const { return lanes[static_cast<std::size_t>(which)]; }
};

/// Keeps the first exception of a callback until SimGrid has returned, because none may propagate through SimGrid.
/// Later callbacks do nothing.
class CallbackGuard {
 public:
  bool has_failed() const { return fault_ != nullptr; }
  [[noreturn]] void rethrow() const { std::rethrow_exception(fault_); }

  template <typename Work>
  void run(Work work)
  {
    if (fault_) return;
    try {
      work();
    } catch (...) {
      fault_ = std::current_exception();
    }
  }

 private:
  std::exception_ptr fault_;
};

struct SimulationState {
  const Platform& platform;
  const Program& program;
  TraceSink* sink;  // may be null
  std::vector<RankState> ranks;
  std::uint64_t step = 0;
  Seconds begin = {};          // of the simulation, by SimGrid's clock
  Seconds last_progress = {};  // when an instruction was last completed
  CallbackGuard guard = {};
};

/// SimGrid's clock.
inline Seconds now()
{
  return Seconds(sg4::Engine::get_clock());
}

}  // namespace isobar::sim

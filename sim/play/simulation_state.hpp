#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

/// What a simulation (sim/play/simulation.cpp) knows of links, lanes and ranks while it plays a program.
namespace isobar::sim {

struct LinkState {
  explicit LinkState(const sg4::Link& link) : name(link.get_name()) {}

  std::string name;
  std::uint64_t bytes = 0;
  Seconds busy_time;
  Seconds busy_since;
  std::size_t transfers = 0;  // whose data it carries
};

/// What transfers from one rank to another meet; looked up once.
struct Channel {
  std::size_t to = 0;
  Route route;
  std::vector<LinkState*> links;  // of route.links, in the same order
};

/// A transfer whose ends have both come to it, or a part of an AllReduce.
struct Message {
  const Channel* channel = nullptr;
  Seconds ready;
  Seconds latency;  // of its path when it was ready
  std::uint64_t bytes = 0;

  /// When its first byte arrives, unless messages before it are still arriving.
  Seconds due() const { return ready + latency; }
};

struct LaneState {
  std::size_t rank = 0;
  Lane lane = Lane::Compute;
  std::uint64_t length = 0;
  std::uint64_t started = 0;  // compute lane: as `completed`; others: those on their way or arriving count too
  std::uint64_t completed = 0;
  Instruction turn;         // instruction `started`, unless that is the end
  Instruction first;        // of a transfer lane: instruction `completed`, once it is on its way
  bool running = false;     // of the compute lane
  bool has_joined = false;  // the AllReduce whose turn it is
  Seconds begin;            // of what it computes, or of the data that arrives
  Bytes memory;             // of the rank, at `begin`
  sg4::ActivityPtr activity;
  // Of a lane that sends, and of a part of an AllReduce:
  const Channel* channel = nullptr;  // the last one looked up
  std::deque<Message> on_the_way;    // none of their bytes has arrived
  Message arriving;                  // the activity carries its data
  Timer* timer = nullptr;            // for the first of `on_the_way`
  Seconds left;                      // when the bytes of the message before had left
  BytesPerSecond fixed_bound;        // SimGrid lets it be no faster than this, whatever a bandwidth profile does
  // Of a lane that receives:
  std::deque<LaneState*> senders;  // of the messages on their way or arriving, in the lane's order

  bool at_end() const { return started == length; }
  bool is_all_reduce() const { return turn.opcode == Opcode::AllReduce; }
  bool uses_network() const { return lane != Lane::Compute || is_all_reduce(); }
  /// What it computes, or transfers before all others.
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

/// Whether a message is on its way over the link, none of its bytes there yet.
bool has_on_the_way(const LaneState& send, const sg4::Link& link);
/// Takes away the timers of all lanes.
void remove_timers(std::vector<RankState>& ranks);
/// The bandwidth of the narrowest link at this moment; infinite without links.
BytesPerSecond narrowest_now(const Route& route);
/// Of what the lane has under way, alone on its host or links: of messages the first one.
Seconds nominal_time(const RankState& rank, const LaneState& lane);
/// "link up", "host a": the slowest thing that the activity of the lane uses.
std::string what_stands_still(const RankState& rank, const LaneState& lane);
/// "Forward of micro-batch 1 (rank 0, step 0)".
std::string description(const LaneState& lane, const Instruction& instruction, std::uint64_t step);
/// A line for each of the first lanes that have not come to their end, with what they wait for.
std::string waiting_instructions(const std::vector<RankState>& ranks, std::uint64_t step);

}  // namespace isobar::sim

#pragma once

#include "core/program.hpp"
#include "core/units.hpp"
#include "sim/routes.hpp"
#include "sim/simgrid_compat.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

/// What a simulation (sim/simulation.cpp) knows of links, lanes and ranks while it plays a program.
namespace isobar::sim {

struct LinkState {
  explicit LinkState(sg4::Link* of) : link(of) {}

  sg4::Link* link;
  std::uint64_t bytes = 0;
  Seconds busy_time;
  Seconds busy_since;
  std::size_t transfers = 0;  // under way
};

/// What transfers from one rank to another meet; looked up once.
struct Channel {
  std::size_t to = 0;
  Route route;
  std::vector<LinkState*> links;  // of route.links, in the same order
};

struct LaneState {
  std::size_t rank = 0;
  Lane lane = Lane::Compute;
  std::uint64_t length = 0;
  std::uint64_t completed = 0;
  Instruction turn;  // instruction `completed`, unless that is the end
  bool running = false;
  Seconds begin;
  Bytes memory;  // of the rank, at `begin`
  sg4::ActivityPtr activity;
  // Of a transfer, in the sender's lane, and of a part of an AllReduce:
  const Channel* channel = nullptr;
  BytesPerSecond fixed_bound;  // SimGrid lets it be no faster than this, whatever a bandwidth profile does
  Seconds flow_begin;          // `begin`, unless a new flow carries what remained

  bool at_end() const { return completed == length; }
  bool is_all_reduce() const { return turn.opcode == Opcode::AllReduce; }
  bool uses_network() const { return lane != Lane::Compute || is_all_reduce(); }
};

struct RankState {
  sg4::Host* host = nullptr;
  double host_flops_per_flop = 0;  // host speed / device speed
  FlopsPerSecond speed;
  Bytes memory;
  std::array<LaneState, lane_count> lanes;

  LaneState& lane(Lane which) { return lanes[static_cast<std::size_t>(which)]; }
};

}  // namespace isobar::sim

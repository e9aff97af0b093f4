#pragma once

#include "core/program/channel_rounds.hpp"
#include "core/program/collective.hpp"
#include "core/program/program.hpp"
#include "sim/play/computations.hpp"
#include "sim/play/lanes.hpp"
#include "sim/play/link_turns.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/streams.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::sim {

/// The collectives of a channel: one at a time.
struct Collective {
  const Channel* channel = nullptr;
  std::vector<LaneState*> ends;
  std::vector<LaneState*> lane_at;  // by place of the rounds' flows; null where no end acts
  std::vector<sg4::Host*> host_at;  // likewise, of all
  Seconds start;                    // before its first flow
  std::vector<std::string> sites;   // of the ends; only of hierarchical ones
  std::size_t joined = 0;           // ends
  std::optional<Opcode> opcode;     // of the last one; rounds are found again only if it differs
  std::vector<Bytes> sizes;         // the same
  std::vector<Bytes> results;       // the same; empty if the parts are equal
  std::vector<Round> rounds;
  std::vector<LinkState*> links;  // of all rounds, where they take turns
  std::size_t next_round = 0;
  std::size_t flows_left = 0;    // of the current round
  std::vector<Stream*> streams;  // reused by each round
  Timer* timer = nullptr;        // for the end of one without flows
};

/// Collectives: rounds of flows (core/program/collective.hpp). A flow pays the latency of its hop for each of its
/// messages; then the bytes of all flow at once. A round ends when all its flows have ended; then the next one begins.
/// Where links take turns, a collective holds those of all its rounds until it ends. One that has a time of its own
/// (Instruction::time) has no flows.
class Collectives {
 public:
  /// `turns`: of the links; none if all share them. `on_end`: called when a collective without flows has ended.
  Collectives(SimulationState& state, Lanes& lanes, Streams& streams, Computations& computations,
              std::optional<LinkTurns>& turns, std::function<void()> on_end)
      : state_(state),
        lanes_(lanes),
        streams_(streams),
        computations_(computations),
        turns_(turns),
        on_end_(std::move(on_end))
  {
  }

  /// Joins the collective that is the turn of the lane; it starts when all ends have joined.
  void join(LaneState& lane);
  /// Ends a flow whose last byte has arrived.
  void complete(const Stream& flow);
  /// Removes all timers. Needed before the process exits.
  void remove_timers();

 private:
  Collective& collective_of(LaneState& lane);
  std::string site_of(const RankState& rank) const;
  void start(Collective& collective);
  void find_links(Collective& collective);
  void begin(Collective& collective);
  void end(Collective& collective);
  void play_rounds(Collective& collective);
  void start_flows(Collective& collective, const Round& round, Seconds delay);

  SimulationState& state_;
  Lanes& lanes_;
  Streams& streams_;
  Computations& computations_;
  std::optional<LinkTurns>& turns_;
  std::function<void()> on_end_;
  std::deque<Collective> collectives_;
};

}  // namespace isobar::sim

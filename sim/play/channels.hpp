#pragma once

#include "sim/play/simulation.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace isobar::sim {

/// The routes between ranks, and the use of their links: bytes and busy time.
class Channels {
 public:
  explicit Channels(const SimulationState& state) : state_(state) {}

  /// The channel from the lane's rank to another; the lane keeps the last one. O(log(channels)) for a new one.
  /// @throws InputError without a route.
  const Channel& find(LaneState& send, std::size_t to)
  {
    if (send.channel == nullptr || send.channel->to != to) send.channel = &look_up(send.rank, to);
    return *send.channel;
  }

  /// Counts a message on its links from the first byte of its data to the last, and reports the counts to the sink.
  void hold_links(const Message& message);
  void release_links(const Message& message);

  /// Whether data of a message is on the link.
  bool carries_data(const sg4::Link& link) const;
  /// The links that carried anything, sorted by name.
  std::vector<LinkUse> uses() const;

 private:
  const Channel& look_up(std::size_t from, std::size_t to);
  void report(const LinkState& link, Seconds time) const;

  const SimulationState& state_;
  std::map<std::pair<std::size_t, std::size_t>, Channel> channels_;  // by rank of sender and receiver
  std::deque<LinkState> links_;
  std::unordered_map<const sg4::Link*, LinkState*> state_of_link_;
};

}  // namespace isobar::sim

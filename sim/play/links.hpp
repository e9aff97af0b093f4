#pragma once

#include "sim/play/simulation.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace isobar::sim {

/// The hops between ranks, and the use of their links: bytes and busy time.
class Links {
 public:
  explicit Links(const SimulationState& state) : state_(state) {}

  /// The hop from one rank to another. O(log(hops)). @throws InputError without a route between different hosts.
  const Hop& hop(std::size_t from, std::size_t to);

  /// Counts data on the links of a hop from their first byte to the last, and reports the counts to the sink.
  void hold(const Hop& hop);
  void release(const Hop& hop, std::uint64_t bytes);

  /// Whether data are on the link.
  bool carries_data(const sg4::Link& link) const;
  /// The links that carried anything, sorted by name.
  std::vector<LinkUse> uses() const;

 private:
  void report(const LinkState& link, Seconds time) const;

  const SimulationState& state_;
  std::map<std::pair<std::size_t, std::size_t>, Hop> hops_;  // by rank of sender and receiver
  std::deque<LinkState> links_;
  std::unordered_map<const sg4::Link*, LinkState*> state_of_link_;
};

}  // namespace isobar::sim

#pragma once

#include "sim/play/simulation.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace isobar::sim {

/// The hops between hosts, and the use of their links: bytes and busy time.
class Links {
 public:
  explicit Links(const SimulationState& state) : state_(state) {}

  /// The hop from one host to another, over which no flow gets more than `most`. O(log(hops)). Call with one `most` for
  /// each two hosts. @throws InputError without a route between different hosts, and for a `most` below its bandwidth
  /// if the route has no latency.
  const Hop& hop(sg4::Host& from, sg4::Host& to, BytesPerSecond most);

  /// Counts data on the links of a hop from their first byte to the last, and reports the counts to the sink.
  void hold(const Hop& hop);
  void release(const Hop& hop, std::uint64_t bytes);

  /// Follows a bandwidth profile.
  void bandwidth_changed(const sg4::Link& link);
  /// Whether data are on the link.
  bool carries_data(const sg4::Link& link) const;
  /// The links that carried anything, sorted by name.
  std::vector<LinkUse> uses() const;

 private:
  void report(const LinkState& link, Seconds time) const;

  const SimulationState& state_;
  std::map<std::pair<const sg4::Host*, const sg4::Host*>, Hop> hops_;
  std::deque<LinkState> links_;
  std::unordered_map<const sg4::Link*, LinkState*> state_of_link_;
};

}  // namespace isobar::sim

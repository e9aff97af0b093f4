#pragma once

#include "core/program/collective.hpp"
#include "core/program/program.hpp"
#include "core/shared_link.hpp"
#include "core/transfer_times.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace isobar {

/// What lies between the ends of a collective.
struct EndNetwork {
  /// The times of a message of `size` bytes from one end to another, alone; none: it takes no time.
  std::function<TransferTimes(std::size_t from, std::size_t to, Bytes size)> transfer = {};
  /// The links on its way; none: no two flows share one.
  std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_links = {};
  /// What passes at an end before the first flow of a collective (Device::collective_start); none: nothing.
  std::function<Seconds(std::size_t end)> start = {};
};

/// What lies between some ends of a network. Refers to `whole`, which must outlive it.
EndNetwork network_between(std::vector<std::size_t> ends, const EndNetwork& whole);

/// The rounds of one group of ends, of several like it beside each other: `groups` has the ends of each, in its order.
std::vector<Round> rounds_beside(const std::vector<Round>& rounds, const std::vector<std::vector<std::size_t>>& groups);

/// When each flow of a round has ended, since the round began, as the simulator plays it if nothing else is under way.
///
/// A flow first takes messages x latency, and then its data, which share links with those of the others (SharedFlows).
/// The weight of a flow is 1 / latency of a message, and no flow is faster than alone. O(flows · links) for flows that
/// take no bandwidth from each other.
std::vector<Seconds> ends_of_flows(const Round& round, const EndNetwork& network);

/// When the last of them has: 0 for no flows.
Seconds round_time(const Round& round, const EndNetwork& network);

/// How long a collective of these rounds takes, alone: the longest start of an end, and the rounds one after the other.
/// 0 without rounds.
Seconds collective_time(const std::vector<Round>& rounds, const EndNetwork& network);
/// The longest start of an end of these rounds.
Seconds collective_start(const std::vector<Round>& rounds, const EndNetwork& network);

}  // namespace isobar

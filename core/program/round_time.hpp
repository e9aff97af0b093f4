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

/// Links that only flows of a common end share: a flow takes bandwidth from those that leave or reach one of its own
/// ends. So a device that sends to many, or whose one link has both directions, is as slow as its links are.
std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_by_own_flows(
    std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_links);

/// What lies between the ends of a channel of a program.
///
/// Channels of collectives on lanes of one name among ranks of one grid, such as those of the devices at each place in
/// the replicas of a group, run beside each other with as much data: a link that flows of several pass carries each
/// byte of one so often. Those of shards (Lane::role) count alone. Refers to `whole`, which must outlive it.
/// O(channels).
EndNetwork network_of_channel(const Program& program, std::size_t channel, const EndNetwork& whole);

/// When each flow of a round has ended, since the round began, as the simulator plays it if nothing else is under way.
///
/// A flow first takes messages x latency, and then its data. Flows whose data are on the way at one time share their
/// links by weighted max-min fairness: no rate can grow unless one that is smaller, relative to its weight, shrinks.
/// The weight is 1 / latency of a message (1 without latency), as in SimGrid's CM02. No flow is faster than alone. A
/// flow that fills a fat pipe leaves the others in it only their weights' part of its bandwidth, as there.
/// O(flows · links) for flows that take no bandwidth from each other; else for each time at which a flow begins or
/// ends, and each rate.
std::vector<Seconds> ends_of_flows(const Round& round, const EndNetwork& network);

/// When the last of them has: 0 for no flows.
Seconds round_time(const Round& round, const EndNetwork& network);

/// How long a collective of these rounds takes, alone: the longest start of an end, and the rounds one after the other.
/// 0 without rounds.
Seconds collective_time(const std::vector<Round>& rounds, const EndNetwork& network);
/// The longest start of an end of these rounds.
Seconds collective_start(const std::vector<Round>& rounds, const EndNetwork& network);

}  // namespace isobar

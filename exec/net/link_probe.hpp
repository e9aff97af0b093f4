#pragma once

#include "core/units.hpp"
#include "exec/net/tcp_world.hpp"

#include <cstddef>
#include <vector>

namespace isobar::exec {

/// What a message of a size takes, from its beginning until it is there: the median, without the answer's way back.
struct SizeMeasurement {
  Bytes size;
  Seconds time;
};

/// What messages meet from one rank to another.
struct LinkMeasurement {
  std::size_t from = 0;
  std::size_t to = 0;
  std::size_t flows = 1;               ///< TCP connections that shared each message
  Seconds latency;                     ///< one way: half of the median of round trips of an empty message
  BytesPerSecond bandwidth;            ///< what more bytes take: from the two largest sizes
  std::vector<SizeMeasurement> sizes;  ///< 64 KiB, then four times as much each, up to 64 MiB or a second
};

/// 1, 2, 4, … and the most (1..64).
std::vector<std::size_t> flow_counts(std::size_t most);

/// Measures every link of a world of `ranks.size()` ranks with 1, 2, 4, … and `most_flows` connections, one link at a
/// time, so that each has the network alone. All ranks call it; each returns the links that begin at it. Takes some
/// seconds for each link. Of the options, the flows and the deadline are its own.
/// @throws as TcpWorld and TcpLink do.
std::vector<LinkMeasurement> probe_links(std::size_t rank, const std::vector<Endpoint>& ranks, std::size_t most_flows,
                                         TcpOptions options);

/// Measures the loopback interface between two ranks of this process, with that many TCP connections (1..64).
LinkMeasurement probe_loopback(std::size_t flows);

}  // namespace isobar::exec

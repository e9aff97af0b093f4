#pragma once

#include "core/units.hpp"
#include "exec/links/tcp_world.hpp"

#include <cstddef>
#include <vector>

namespace isobar::exec {

/// Median time from the start of a message until it has arrived, without the time of the answer.
struct SizeMeasurement {
  Bytes size;
  Seconds time;
};

/// Measured link from one rank to another.
struct LinkMeasurement {
  std::size_t from = 0;
  std::size_t to = 0;
  std::size_t connections = 1;         ///< TCP connections that shared each message
  Seconds latency;                     ///< one way: half of the median round trip of an empty message
  BytesPerSecond bandwidth;            ///< of additional bytes: from the two largest sizes
  std::vector<SizeMeasurement> sizes;  ///< 64 KiB, 256 KiB, …, up to 64 MiB or a second
};

/// 1, 2, 4, … and `most` (1..64).
std::vector<std::size_t> connection_counts(std::size_t most);

/// Measures every link of a process group with 1, 2, 4, … and `most_connections` connections. It measures one link at a
/// time, so that each has the network to itself. All ranks call it; each returns the links that begin at it. Takes some
/// seconds for each link. Overrides the connections and the deadline of `options`.
/// @throws as TcpWorld and TcpLink do.
std::vector<LinkMeasurement> probe_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                         std::size_t most_connections, TcpOptions options);

/// Measures the loopback interface between two ranks of this process. `connections`: TCP connections, 1..64.
LinkMeasurement probe_loopback(std::size_t connections);

}  // namespace isobar::exec

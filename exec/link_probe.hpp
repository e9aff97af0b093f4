#pragma once

#include "core/units.hpp"

#include <cstddef>

namespace isobar::exec {

/// What a message meets from one rank to another.
struct LinkMeasurement {
  Seconds latency;           ///< one way: half of the median of round trips of an empty message
  BytesPerSecond bandwidth;  ///< what more bytes take: from the medians of messages of 1 and of 17 MiB
};

/// Measures the loopback interface between two ranks of this process, with that many TCP connections (1..64).
LinkMeasurement probe_loopback(std::size_t flows);

}  // namespace isobar::exec

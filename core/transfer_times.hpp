#pragma once

#include "core/units.hpp"

namespace isobar {

/// The duration of one transfer without contention.
struct TransferTimes {
  Seconds latency;  ///< until its first byte arrives
  Seconds data;     ///< while its bytes leave, and while they arrive: how long it occupies its lane

  Seconds total() const { return latency + data; }
};

}  // namespace isobar

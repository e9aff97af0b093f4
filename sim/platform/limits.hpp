#pragma once

#include "core/units.hpp"

namespace isobar::sim {

/// Whether closed forms and the simulator can compute with a speed (FLOP/s) or a bandwidth (B/s): at least 1, and far
/// from the largest double.
inline bool is_rate(double value)
{
  return value >= 1 && value <= 1e30;
}

/// The longest latency of a route: eleven days. A longer one is taken for a wrong unit.
inline constexpr Seconds most_latency = Seconds(1e6);

}  // namespace isobar::sim

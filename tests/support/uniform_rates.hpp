#pragma once

#include "core/program/player.hpp"

#include <cstddef>

namespace isobar::testing_support {

/// Ranks of 1 FLOP/s, with the same path between any two.
inline PlayerRates uniform_rates(std::size_t ranks, double latency, double bytes_per_second)
{
  PlayerRates rates;
  rates.speeds.assign(ranks, FlopsPerSecond(1));
  rates.transfer = [=](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(latency), size / BytesPerSecond(bytes_per_second)};
  };
  return rates;
}

}  // namespace isobar::testing_support

#pragma once

#include "core/program/player.hpp"

namespace isobar::testing_support {

/// The same path between any two ranks.
inline PlayerRates uniform_rates(double latency, double bytes_per_second)
{
  PlayerRates rates;
  rates.transfer = [=](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(latency), size / BytesPerSecond(bytes_per_second)};
  };
  return rates;
}

}  // namespace isobar::testing_support

#pragma once

#include <cstddef>
#include <cstdint>

namespace isobar::allocators {

/// Random numbers for inner loops, the same on every machine; about 2 ns each. Published results use
/// core/base/pcg64.hpp instead. Source: SplitMix64, Steele, Lea, Flood, OOPSLA 2014.
class FastRandom {
 public:
  explicit FastRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next()
  {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// Returns 0 … bound - 1; 0 for a bound of 0. The bias, bound / 2^32, does not matter to a search.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>((next() >> 32) * bound >> 32); }
  /// Returns a number in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace isobar::allocators

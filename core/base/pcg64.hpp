#pragma once

#include <cstdint>

namespace isobar {

/// The random numbers of numpy's `default_rng(seed)`, bit for bit: PCG64 XSL-RR 128/64, seeded by numpy's SeedSequence.
///
/// A stream can thus be reproduced in Python, and streams of published experiments can be reproduced here.
/// Source: M. E. O'Neill, "PCG", Harvey Mudd College HMC-CS-2014-0905, 2014; numpy 1.17 and later.
class Pcg64 {
 public:
  explicit Pcg64(std::uint64_t seed);

  /// 64 random bits.
  std::uint64_t next();
  /// Uniform in [0, 1): numpy's `random()`.
  double uniform();
  /// Uniform in 0 ... bound - 1, for a bound of at least 2: numpy's `integers(bound)`.
  /// Uses half of a `next()`, the low half first, and keeps the other half for the next call.
  std::uint32_t below(std::uint32_t bound);

 private:
  __extension__ using Uint128 = unsigned __int128;

  std::uint32_t next_half();

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
  std::uint32_t kept_half_ = 0;
  bool has_kept_half_ = false;
};

}  // namespace isobar

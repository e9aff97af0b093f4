#pragma once

#include <cstdint>

namespace isobar::exec {

/// A pseudorandom order of 0 … count − 1, computed from seed and epoch and never stored: O(1) memory, O(1) expected
/// time per position. A sampler therefore needs no state except its position, and resumes anywhere.
///
/// A keyed Feistel network permutes the next even power of two; a value outside the range follows its cycle until it is
/// inside. Four rounds of splitmix64 are even enough for samples, but no cipher.
/// Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, sections 5 and 6.
class ShuffledOrder {
 public:
  /// `count`: 1 to 2^62.
  ShuffledOrder(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

  /// The value at `position`, which must be below count.
  std::uint64_t at(std::uint64_t position) const;

 private:
  std::uint64_t permuted(std::uint64_t value) const;

  std::uint64_t count_;
  std::uint64_t key_;
  unsigned half_bits_;
};

}  // namespace isobar::exec

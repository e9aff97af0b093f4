#pragma once

#include <cstdint>

namespace isobar::exec {

/// A random order of 0 … count − 1 that follows from seed and epoch alone and is stored nowhere: O(1) memory, and
/// O(1) expected time for each position. So a sampler needs no state but its position, and resumes anywhere.
///
/// A keyed Feistel network permutes the next even power of two; what falls outside walks on along its cycle until it is
/// inside. Four rounds of splitmix64: even enough for samples, no secret.
/// Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, sections 5 and 6.
class ShuffledOrder {
 public:
  /// `count`: 1 to 2^62.
  ShuffledOrder(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

  /// What stands at `position`, which is below count.
  std::uint64_t at(std::uint64_t position) const;

 private:
  std::uint64_t permuted(std::uint64_t value) const;

  std::uint64_t count_;
  std::uint64_t key_;
  unsigned half_bits_;
};

}  // namespace isobar::exec

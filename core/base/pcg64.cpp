#include "core/base/pcg64.hpp"

#include "core/errors.hpp"

#include <array>
#include <cstddef>

namespace isobar {

namespace {

/// numpy's SeedSequence for a seed without spawn keys: spreads its 64 bits over a pool of four words, from which any
/// number of words can be drawn. Constants and steps: numpy/random/bit_generator.pyx, after M. E. O'Neill's seed_seq.
class SeedSequence {
 public:
  explicit SeedSequence(std::uint64_t seed)
  {
    const std::array<std::uint32_t, 4> entropy = {static_cast<std::uint32_t>(seed),
                                                  static_cast<std::uint32_t>(seed >> 32), 0, 0};
    std::uint32_t multiplier = 0x43b0d7e5;
    const auto hashed = [&multiplier](std::uint32_t word) {
      word ^= multiplier;
      multiplier *= 0x931e8875;
      word *= multiplier;
      return word ^ (word >> 16);
    };
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hashed(entropy[i]);
    for (std::size_t from = 0; from < pool_.size(); ++from) {
      for (std::size_t to = 0; to < pool_.size(); ++to) {
        if (from == to) continue;
        const std::uint32_t mixed = 0xca01f9dd * pool_[to] - 0x4973f715 * hashed(pool_[from]);
        pool_[to] = mixed ^ (mixed >> 16);
      }
    }
  }

  std::uint64_t next()
  {
    const std::uint64_t low = next_word();
    return low | static_cast<std::uint64_t>(next_word()) << 32;
  }

 private:
  std::uint32_t next_word()
  {
    std::uint32_t word = pool_[drawn_++ % pool_.size()] ^ multiplier_;
    multiplier_ *= 0x58f38ded;
    word *= multiplier_;
    return word ^ (word >> 16);
  }

  std::array<std::uint32_t, 4> pool_{};
  std::size_t drawn_ = 0;
  std::uint32_t multiplier_ = 0x8b51f9dd;
};

}  // namespace

Pcg64::Pcg64(std::uint64_t seed)
{
  SeedSequence words(seed);
  const auto next_128 = [&words] {
    const Uint128 high = words.next();
    return high << 64 | words.next();
  };
  const Uint128 start = next_128();
  increment_ = next_128() << 1 | 1;
  // The generator's first state is 0; it is advanced once before the start value is added and once after.
  next();
  state_ += start;
  next();
}

std::uint64_t Pcg64::next()
{
  constexpr Uint128 multiplier = static_cast<Uint128>(0x2360ed051fc65da4) << 64 | 0x4385df649fccf645;
  state_ = state_ * multiplier + increment_;
  const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
  const auto rotation = static_cast<unsigned>(state_ >> 122);
  return folded >> rotation | folded << (-rotation & 63u);
}

double Pcg64::uniform()
{
  return static_cast<double>(next() >> 11) * 0x1p-53;
}

std::uint32_t Pcg64::next_half()
{
  if (has_kept_half_) {
    has_kept_half_ = false;
    return kept_half_;
  }
  const std::uint64_t both = next();
  kept_half_ = static_cast<std::uint32_t>(both >> 32);
  has_kept_half_ = true;
  return static_cast<std::uint32_t>(both);
}

std::uint32_t Pcg64::below(std::uint32_t bound)
{
  ensure(bound >= 2, "the bound of a random number is at least 2");
  // D. Lemire, "Fast random integer generation in an interval", 2019: the high half of the product, unless its low half
  // falls into the range that would make small values more likely.
  const std::uint32_t rejected = -bound % bound;
  while (true) {
    const std::uint64_t product = static_cast<std::uint64_t>(next_half()) * bound;
    if (static_cast<std::uint32_t>(product) >= rejected) return static_cast<std::uint32_t>(product >> 32);
  }
}

}  // namespace isobar

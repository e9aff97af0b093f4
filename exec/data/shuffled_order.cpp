#include "exec/data/shuffled_order.hpp"

#include "exec/data/mixing.hpp"

#include <bit>

namespace isobar::exec {

ShuffledOrder::ShuffledOrder(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch)
    : count_(count), key_(mixed({seed, epoch})), half_bits_((static_cast<unsigned>(std::bit_width(count - 1)) + 1) / 2)
{
}

std::uint64_t ShuffledOrder::permuted(std::uint64_t value) const
{
  constexpr std::uint64_t rounds = 4;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t next = left ^ (mixed({key_, round, right}) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t ShuffledOrder::at(std::uint64_t position) const
{
  // The walk ends: its cycle returns at the latest to `position`, which is inside.
  std::uint64_t value = permuted(position);
  while (value >= count_) value = permuted(value);
  return value;
}

}  // namespace isobar::exec

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// How a message travels over the connections of a link: the first one carries a frame, the header and the first stripe
/// of the payload, the others carry one stripe each.
namespace isobar::exec {

static_assert(std::endian::native == std::endian::little, "frames are sent as they lie in memory");

/// Sent before each header.
struct Frame {
  static constexpr std::uint32_t expected_mark = 0x4d425349;  ///< "ISBM"

  std::uint32_t mark = expected_mark;
  std::uint32_t header = 0;   ///< bytes
  std::uint64_t payload = 0;  ///< bytes
};

/// Bytes of all buffers together.
template <typename Byte>
std::size_t total_of(std::span<const std::span<Byte>> buffers)
{
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

/// Number of connections, of those that a link has, that share a payload of `total` bytes.
inline std::size_t stripe_count(std::size_t total, std::size_t connections)
{
  constexpr std::size_t shortest_striped = std::size_t{1} << 16;  // below, a second connection costs more than it saves
  return total < shortest_striped ? 1 : connections;
}

/// Cuts buffers of `total` bytes into `count` runs of similar size, in order.
template <typename Byte>
std::vector<std::vector<std::span<Byte>>> stripes_of(std::span<const std::span<Byte>> buffers, std::size_t total,
                                                     std::size_t count)
{
  std::vector<std::vector<std::span<Byte>>> stripes(count);
  std::size_t stripe = 0;
  std::size_t position = 0;
  for (auto buffer : buffers) {
    while (!buffer.empty()) {
      const auto end = total / count * (stripe + 1) + total % count * (stripe + 1) / count;
      const auto length = std::min(buffer.size(), end - position);
      stripes[stripe].push_back(buffer.first(length));
      buffer = buffer.subspan(length);
      position += length;
      if (position == end) ++stripe;
    }
  }
  return stripes;
}

}  // namespace isobar::exec

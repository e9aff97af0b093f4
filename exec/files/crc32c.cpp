#include "exec/files/crc32c.hpp"

#include <array>

namespace isobar::exec {

namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][byte]: what a byte that is followed by k more contributes to the remainder.
constexpr Tables make_tables()
{
  constexpr std::uint32_t polynomial = 0x82f63b78;  // bits reversed
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? polynomial : 0);
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before)
{
  std::uint32_t remainder = ~before;
  // Eight bytes at a time: their look-ups are independent (Kounavis and Berry 2005, "slicing by 8").
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto byte = std::to_integer<std::uint32_t>(bytes[i]);
      next ^= tables[7 - i][i < 4 ? byte ^ (remainder >> (8 * i) & 0xff) : byte];
    }
    remainder = next;
  }
  for (const std::byte byte : bytes) {
    remainder = (remainder >> 8) ^ tables[0][(remainder ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~remainder;
}

}  // namespace isobar::exec

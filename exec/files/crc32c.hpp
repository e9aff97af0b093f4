#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace isobar::exec {

/// CRC-32C (Castagnoli) of a text whose first part has the CRC `before` and whose rest is `bytes`, so that a text may
/// be hashed piece by piece. Source: RFC 3720, appendix B.4; the polynomial is in its section 12.1.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace isobar::exec

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace isobar::exec {

/// The CRC-32C (Castagnoli) of `bytes` behind those whose CRC is `before`: of what comes in pieces, piece by piece.
/// Source: RFC 3720, appendix B.4, and its polynomial in section 12.1.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace isobar::exec

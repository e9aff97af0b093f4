#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <string>

namespace isobar {

/// How numbers are encoded to travel between sites.
enum class CodecKind : std::uint8_t {
  Float32,
  BFloat16,
  Int8,  ///< blocks of codec_block values: a float32 scale, and a byte for each
  Int4,  ///< blocks of codec_block values: a bfloat16 scale, and half a byte for each
  TopK   ///< of each chunk of top_k_chunk values the largest: their places, in top_k_place_bits, and values
};

inline constexpr std::uint64_t codec_block = 1024;
inline constexpr std::uint64_t top_k_chunk = 4096;
inline constexpr unsigned top_k_place_bits = 12;

struct Codec {
  CodecKind kind = CodecKind::Float32;
  double fraction = 1;       ///< of TopK: the part of a chunk's values that travel, above 0 and at most 1
  unsigned value_bits = 16;  ///< of TopK: 16, a bfloat16 each; or 2, ±s and ±s/3 of a bfloat16 s for each chunk

  bool operator==(const Codec&) const = default;
};

/// The codec with that name: "fp32", "bf16", "int8", "int4", "top-k 0.01" or "top-k 0.01 2-bit".
/// @throws InputError for another text, with what would be right.
Codec codec_from_text(const std::string& text);
std::string text_of(const Codec& codec);

/// The values of a chunk of `values` that TopK sends: fraction x values, rounded up, where the fraction is the decimal
/// number that it is written as.
std::uint64_t kept_values(const Codec& codec, std::uint64_t values);

/// The bytes of `values` float32 values, encoded: exact, with scales. Places and values of TopK are packed bit by bit
/// in each chunk, which begins at a byte.
Bytes encoded_size(const Codec& codec, std::uint64_t values);

/// Whether encodings of different values have no common places, so that they are gathered, not summed on the way.
bool is_sparse(const Codec& codec);

/// Whether decoded values may differ from those that were encoded.
bool changes_numerics(const Codec& codec);

}  // namespace isobar

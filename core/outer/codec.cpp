#include "core/outer/codec.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace isobar {

namespace {

constexpr NameTable<CodecKind, 4> dense_codecs = {{{CodecKind::Float32, "fp32"},
                                                   {CodecKind::BFloat16, "bf16"},
                                                   {CodecKind::Int8, "int8"},
                                                   {CodecKind::Int4, "int4"}}};
constexpr std::string_view top_k = "top-k ";
constexpr std::string_view two_bit = " 2-bit";
constexpr unsigned bits_of_byte = 8;

std::uint64_t divided_up(std::uint64_t value, std::uint64_t by)
{
  return value / by + (value % by > 0 ? 1 : 0);
}

/// Bytes of a chunk of TopK.
std::uint64_t chunk_size(const Codec& codec, std::uint64_t values)
{
  if (values == 0) return 0;
  const std::uint64_t scale = codec.value_bits == 2 ? 2 : 0;
  return scale + divided_up(kept_values(codec, values) * (top_k_place_bits + codec.value_bits), bits_of_byte);
}

}  // namespace

Codec codec_from_text(const std::string& text)
{
  if (const auto kind = value_in(dense_codecs, text)) return {*kind};
  const auto fault = [&] {
    return InputError(
        fmt::format("{} is no codec; write fp32, bf16, int8, int4, or top-k and the part of the values "
                    "that travel, above 0 and at most 1: \"top-k 0.01\" or \"top-k 0.01 2-bit\"",
                    in_quotes(text)));
  };
  std::string_view rest = text;
  if (!rest.starts_with(top_k)) throw fault();
  rest.remove_prefix(top_k.size());
  Codec codec{CodecKind::TopK};
  if (rest.ends_with(two_bit)) {
    codec.value_bits = 2;
    rest.remove_suffix(two_bit.size());
  }
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), codec.fraction);
  const bool is_whole = error == std::errc() && end == rest.data() + rest.size();
  if (!is_whole || !(codec.fraction > 0) || codec.fraction > 1) throw fault();
  return codec;
}

std::string text_of(const Codec& codec)
{
  if (codec.kind != CodecKind::TopK) return std::string(name_in(dense_codecs, codec.kind));
  return fmt::format("{}{}{}", top_k, codec.fraction, codec.value_bits == 2 ? two_bit : "");
}

std::uint64_t kept_values(const Codec& codec, std::uint64_t values)
{
  // Two roundings, of the decimal fraction and of the product, must not add a value.
  constexpr double exact = 1 - 2 * std::numeric_limits<double>::epsilon();
  return std::min(values, static_cast<std::uint64_t>(std::ceil(codec.fraction * static_cast<double>(values) * exact)));
}

Bytes encoded_size(const Codec& codec, std::uint64_t values)
{
  const auto bytes = [&]() -> std::uint64_t {
    switch (codec.kind) {
      case CodecKind::Float32:
        return 4 * values;
      case CodecKind::BFloat16:
        return 2 * values;
      case CodecKind::Int8:
        return values + 4 * divided_up(values, codec_block);
      case CodecKind::Int4:
        return divided_up(values, 2) + 2 * divided_up(values, codec_block);
      case CodecKind::TopK:
        return values / top_k_chunk * chunk_size(codec, top_k_chunk) + chunk_size(codec, values % top_k_chunk);
    }
    throw std::logic_error("an unknown codec");
  };
  return Bytes(static_cast<double>(bytes()));
}

bool is_sparse(const Codec& codec)
{
  return codec.kind == CodecKind::TopK;
}

bool changes_numerics(const Codec& codec)
{
  return codec.kind != CodecKind::Float32;
}

}  // namespace isobar

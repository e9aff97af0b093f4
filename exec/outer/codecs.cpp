#include "exec/outer/codecs.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

// The loops below are plain, so that compilers vectorize them, and this room is compiled without fused multiply-add,
// so that all machines have the same bits.
namespace isobar::exec {

namespace {

static_assert(std::numeric_limits<float>::is_iec559);

constexpr std::uint32_t infinity_bits = 0x7f800000;
constexpr std::uint32_t magnitude_bits = 0x7fffffff;
constexpr float largest = std::numeric_limits<float>::max();

constexpr bool is_little = std::endian::native == std::endian::little;

template <typename Word>
Word swapped(Word word)
{
  if constexpr (sizeof word == 2) return __builtin_bswap16(word);
  if constexpr (sizeof word == 4) return __builtin_bswap32(word);
}

/// Words are little-endian where they travel.
template <typename Word>
void store(std::byte* bytes, Word word)
{
  if constexpr (!is_little) word = swapped(word);
  std::memcpy(bytes, &word, sizeof word);
}

template <typename Word>
Word load(const std::byte* bytes)
{
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return is_little ? word : swapped(word);
}

/// The bits of the largest magnitude; infinity_bits or more if one is not finite.
std::uint32_t largest_bits(std::span<const float> values)
{
  std::int32_t most = 0;
  for (const float value : values) {
    most = std::max(most, static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value) & magnitude_bits));
  }
  return static_cast<std::uint32_t>(most);
}

/// The largest magnitude of finite values. `first`: the number of the first one, for messages.
float largest_of(std::span<const float> values, std::size_t first)
{
  const std::uint32_t bits = largest_bits(values);
  if (bits >= infinity_bits) {
    const auto at = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    throw EnvironmentError(
        fmt::format("value {} to be encoded is {}; outer gradients are finite unless training diverges",
                    first + static_cast<std::size_t>(at - values.begin()), *at));
  }
  return std::bit_cast<float>(bits);
}

[[noreturn]] void refuse(const std::string& what)
{
  throw EnvironmentError("encoded values: " + what);
}

void check_finite(std::span<const float> decoded)
{
  if (largest_bits(decoded) >= infinity_bits) refuse("one is not finite");
}

/// Rounds to nearest, ties to even, and to the largest finite number above it.
std::uint16_t to_bfloat16(float value)
{
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const std::uint32_t beyond = (rounded & 0x7fff) == 0x7f80 ? 1 : 0;
  return static_cast<std::uint16_t>(rounded - beyond);
}

float from_bfloat16(std::uint16_t bits)
{
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Calls `work(block, first)` with the values of each block and the number of its first one.
template <typename Value, typename Work>
void for_each_part(std::span<Value> values, std::size_t size, Work work)
{
  for (std::size_t first = 0; first < values.size(); first += size) {
    work(values.subspan(first, std::min(size, values.size() - first)), first);
  }
}

struct Float32 {
  static void encode(std::span<const float> block, float /*most*/, std::byte* bytes)
  {
    for (std::size_t i = 0; i < block.size(); ++i) store(bytes + 4 * i, std::bit_cast<std::uint32_t>(block[i]));
  }
  static void decode(const std::byte* bytes, std::span<float> block)
  {
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = std::bit_cast<float>(load<std::uint32_t>(bytes + 4 * i));
    check_finite(block);
  }
};

struct BFloat16 {
  static void encode(std::span<const float> block, float /*most*/, std::byte* bytes)
  {
    for (std::size_t i = 0; i < block.size(); ++i) store(bytes + 2 * i, to_bfloat16(block[i]));
  }
  static void decode(const std::byte* bytes, std::span<float> block)
  {
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = from_bfloat16(load<std::uint16_t>(bytes + 2 * i));
    check_finite(block);
  }
};

/// Divides by a scale and rounds to the nearest integer, ties to even. Exact where the scale or its inverse would have
/// too small an exponent.
class Rounding {
 public:
  explicit Rounding(float scale) : up_(scale < tiny ? 1 / tiny : 1), inverse_(scale > 0 ? 1 / (scale * up_) : 0) {}

  /// The integer in the lowest bits, as two's complement.
  std::uint32_t operator()(float value) const
  {
    constexpr float magic = 12582912;  // 1.5 x 2^23: the last bit of a sum with it is worth 1
    return std::bit_cast<std::uint32_t>(value * up_ * inverse_ + magic);
  }

 private:
  static constexpr float tiny = 0x1p-100F;
  float up_;
  float inverse_;
};

/// The least scale by which `most` becomes `levels` at most, but for rounding; none that takes `levels` to infinity.
float scale_of(float most, float levels)
{
  float scale = most / levels;
  if (scale * levels < most) scale = std::nextafter(scale, largest);
  if (scale * levels > largest) scale = std::nextafter(scale, 0.0F);
  return scale;
}

float checked_scale(float scale, float levels)
{
  if (!(scale >= 0 && scale * levels <= largest)) refuse(fmt::format("a block has the scale {}", scale));
  return scale;
}

struct Int8 {
  static constexpr float levels = 127;

  static void encode(std::span<const float> block, float most, std::byte* bytes)
  {
    const float scale = scale_of(most, levels);
    store(bytes, std::bit_cast<std::uint32_t>(scale));
    const Rounding rounded(scale);
    auto* const out = reinterpret_cast<std::uint8_t*>(bytes + 4);
    for (std::size_t i = 0; i < block.size(); ++i) out[i] = static_cast<std::uint8_t>(rounded(block[i]));
  }
  static void decode(const std::byte* bytes, std::span<float> block)
  {
    const float scale = checked_scale(std::bit_cast<float>(load<std::uint32_t>(bytes)), levels);
    const auto* const in = reinterpret_cast<const std::int8_t*>(bytes + 4);
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<float>(in[i]) * scale;
    if (std::find(in, in + block.size(), std::int8_t{-128}) != in + block.size()) refuse("one is -128 of 127");
  }
};

/// The low halves of a block's bytes hold the first half of its values, the high ones the others.
struct Int4 {
  static constexpr float levels = 7;

  static void encode(std::span<const float> block, float most, std::byte* bytes)
  {
    const float scale = scale_as_bfloat16(most);
    store(bytes, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale) >> 16));
    const Rounding rounded(scale);
    auto* const out = reinterpret_cast<std::uint8_t*>(bytes + 2);
    const std::size_t half = (block.size() + 1) / 2;
    const std::size_t pairs = block.size() - half;
    const float* const low = block.data();
    const float* const high = low + half;
    for (std::size_t i = 0; i < pairs; ++i) {
      out[i] = static_cast<std::uint8_t>((rounded(low[i]) & 15U) | (rounded(high[i]) & 15U) << 4U);
    }
    if (pairs < half) out[pairs] = static_cast<std::uint8_t>(rounded(low[pairs]) & 15U);
  }
  static void decode(const std::byte* bytes, std::span<float> block)
  {
    const float scale = checked_scale(from_bfloat16(load<std::uint16_t>(bytes)), levels);
    const auto* const in = reinterpret_cast<const std::uint8_t*>(bytes + 2);
    const std::size_t half = (block.size() + 1) / 2;
    const std::size_t pairs = block.size() - half;
    float* const low = block.data();
    float* const high = low + half;
    for (std::size_t i = 0; i < half; ++i) low[i] = static_cast<float>(low_half(in[i])) * scale;
    for (std::size_t i = 0; i < pairs; ++i) high[i] = static_cast<float>(high_half(in[i])) * scale;
    unsigned faults = 0;
    for (std::size_t i = 0; i < half; ++i) faults |= (low_half(in[i]) == -8 || high_half(in[i]) == -8) ? 1U : 0U;
    if (faults != 0) refuse("one is -8 of 7");
  }

 private:
  static std::int32_t low_half(std::uint8_t byte) { return (byte & 15) - ((byte & 8) << 1); }
  static std::int32_t high_half(std::uint8_t byte) { return low_half(static_cast<std::uint8_t>(byte >> 4)); }

  static float scale_as_bfloat16(float most)
  {
    constexpr std::uint32_t step = 0x10000;
    const auto bits = std::bit_cast<std::uint32_t>(scale_of(most, levels));
    const float up = std::bit_cast<float>((bits + step - 1) / step * step);
    return up * levels <= largest ? up : std::bit_cast<float>(bits / step * step);
  }
};

/// Packs numbers bit by bit, the lowest ones first.
class BitWriter {
 public:
  explicit BitWriter(std::byte* bytes) : at_(bytes) {}

  void write(std::uint32_t number, unsigned bits)
  {
    held_ |= static_cast<std::uint64_t>(number) << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) *at_++ = static_cast<std::byte>(held_);
  }
  void finish()
  {
    if (count_ > 0) *at_ = static_cast<std::byte>(held_);
  }

 private:
  std::byte* at_;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const std::byte* bytes) : at_(bytes) {}

  std::uint32_t read(unsigned bits)
  {
    for (; count_ < bits; count_ += 8) held_ |= static_cast<std::uint64_t>(*at_++) << count_;
    const auto number = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return number;
  }

 private:
  const std::byte* at_;
  std::uint64_t held_ = 0;
  unsigned count_ = 0;
};

/// Chunks of TopK: their scale if values have two bits, all places in ascending order, all values.
class TopKChunks {
 public:
  explicit TopKChunks(const Codec& codec) : codec_(codec) {}

  void encode(std::span<const float> chunk, float most, std::byte* bytes)
  {
    choose_places(chunk);
    std::uint32_t scale_bits = 0;
    if (codec_.value_bits == 2) {
      scale_bits = to_bfloat16(most);
      store(bytes, static_cast<std::uint16_t>(scale_bits));
      bytes += 2;
    }
    const float middle = from_bfloat16(static_cast<std::uint16_t>(scale_bits)) * (2.0F / 3);
    BitWriter writer(bytes);
    for (const std::uint32_t place : places_) writer.write(place, top_k_place_bits);
    for (const std::uint32_t place : places_) {
      const float value = chunk[place];
      if (codec_.value_bits == 2) {
        writer.write((std::abs(value) >= middle ? 1U : 0U) | (std::signbit(value) ? 2U : 0U), 2);
      } else {
        writer.write(to_bfloat16(value), codec_.value_bits);
      }
    }
    writer.finish();
  }

  void decode(const std::byte* bytes, std::span<float> chunk)
  {
    std::ranges::fill(chunk, 0.0F);
    float scale = 0;
    if (codec_.value_bits == 2) {
      scale = checked_scale(from_bfloat16(load<std::uint16_t>(bytes)), 1);
      bytes += 2;
    }
    BitReader reader(bytes);
    places_.clear();
    for (std::uint64_t i = 0; i < kept_values(codec_, chunk.size()); ++i) {
      const std::uint32_t place = reader.read(top_k_place_bits);
      if (place >= chunk.size()) refuse(fmt::format("place {} in a chunk of {} values", place, chunk.size()));
      if (i > 0 && place <= places_.back()) refuse(fmt::format("place {} after place {}", place, places_.back()));
      places_.push_back(place);
    }
    for (const std::uint32_t place : places_) {
      if (codec_.value_bits == 2) {
        const std::uint32_t code = reader.read(2);
        const float magnitude = (code & 1U) != 0 ? scale : scale / 3;
        chunk[place] = (code & 2U) != 0 ? -magnitude : magnitude;
      } else {
        chunk[place] = from_bfloat16(static_cast<std::uint16_t>(reader.read(codec_.value_bits)));
      }
    }
    check_finite(chunk);
  }

 private:
  /// The places of the largest values, of equal ones those of the first.
  void choose_places(std::span<const float> chunk)
  {
    const auto kept = static_cast<std::ptrdiff_t>(kept_values(codec_, chunk.size()));
    const std::uint32_t threshold = threshold_of(chunk, static_cast<std::uint64_t>(kept));
    keys_.resize(chunk.size());
    std::size_t candidates = 0;
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const std::uint64_t magnitude = magnitude_of(chunk[i]);
      keys_[candidates] = magnitude << top_k_place_bits | (top_k_chunk - 1 - i);
      candidates += magnitude >= threshold ? 1 : 0;
    }
    keys_.resize(candidates);
    std::ranges::nth_element(keys_, keys_.begin() + kept - 1, std::greater<>());
    places_.clear();
    for (auto key = keys_.begin(); key != keys_.begin() + kept; ++key) {
      places_.push_back(static_cast<std::uint32_t>(top_k_chunk - 1 - *key % top_k_chunk));
    }
    std::ranges::sort(places_);
  }

  /// A magnitude that at least `kept` values have, and few more: the lower end of a class of magnitudes with equal
  /// exponents and first bits.
  std::uint32_t threshold_of(std::span<const float> chunk, std::uint64_t kept)
  {
    constexpr unsigned shift = 31 - class_bits;
    counts_.fill(0);
    for (const float value : chunk) ++counts_[magnitude_of(value) >> shift];
    auto lowest = static_cast<std::uint32_t>(counts_.size());
    for (std::uint64_t count = 0; count < kept; count += counts_[lowest]) --lowest;
    return lowest << shift;
  }

  static std::uint32_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(value) & magnitude_bits; }

  static constexpr unsigned class_bits = 12;
  std::array<std::uint16_t, 1U << class_bits> counts_ = {};  // of values, by class
  Codec codec_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> places_;
};

/// Calls `work` with an encoder of blocks, and the number of values of a block.
template <typename Work>
void with_blocks(const Codec& codec, Work work)
{
  switch (codec.kind) {
    case CodecKind::Float32:
      return work(Float32(), codec_block);
    case CodecKind::BFloat16:
      return work(BFloat16(), codec_block);
    case CodecKind::Int8:
      return work(Int8(), codec_block);
    case CodecKind::Int4:
      return work(Int4(), codec_block);
    case CodecKind::TopK:
      return work(TopKChunks(codec), top_k_chunk);
  }
  throw std::logic_error("an unknown codec");
}

}  // namespace

std::size_t encoded_bytes(const Codec& codec, std::size_t values)
{
  return static_cast<std::size_t>(encoded_size(codec, values).value);
}

void encode(const Codec& codec, std::span<const float> values, std::span<std::byte> bytes)
{
  ensure(bytes.size() == encoded_bytes(codec, values.size()), "an encoding has the size of its codec");
  with_blocks(codec, [&](auto blocks, std::size_t size) {
    const std::size_t stride = encoded_bytes(codec, size);
    for_each_part(values, size, [&](std::span<const float> block, std::size_t first) {
      blocks.encode(block, largest_of(block, first), bytes.data() + first / size * stride);
    });
  });
}

void decode(const Codec& codec, std::span<const std::byte> bytes, std::span<float> values)
{
  const std::size_t expected = encoded_bytes(codec, values.size());
  if (bytes.size() != expected) {
    refuse(fmt::format("{} B; {} values as {} have {} B", bytes.size(), values.size(), text_of(codec), expected));
  }
  with_blocks(codec, [&](auto blocks, std::size_t size) {
    const std::size_t stride = encoded_bytes(codec, size);
    for_each_part(values, size, [&](std::span<float> block, std::size_t first) {
      blocks.decode(bytes.data() + first / size * stride, block);
    });
  });
}

ErrorFeedback::ErrorFeedback(const Codec& codec, std::vector<float> residual, float decay)
    : codec_(codec), residual_(std::move(residual)), sent_(residual_.size()), decay_(decay)
{
}

void ErrorFeedback::encode(std::span<const float> values, std::span<std::byte> bytes)
{
  ensure(values.size() == residual_.size(), "a residual has as many values as what is encoded");
  for (std::size_t i = 0; i < values.size(); ++i) residual_[i] = decay_ * residual_[i] + values[i];
  exec::encode(codec_, residual_, bytes);
  decode(codec_, bytes, sent_);
  for (std::size_t i = 0; i < sent_.size(); ++i) residual_[i] -= sent_[i];
}

}  // namespace isobar::exec

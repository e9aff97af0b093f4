#include "results/trace/gzip.hpp"

#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <zlib.h>
#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>

namespace isobar::results {

namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 32U;

}  // namespace

std::string read_unpacked(const std::filesystem::path& file)
{
  std::string text = read_file(file);
  if (!text.starts_with("\x1f\x8b")) return text;
  try {
    return unpack_gzip(text);
  } catch (const InputError& fault) {
    throw InputError(file.string(), fault.what());
  }
}

std::string unpack_gzip(std::string_view packed)
{
  constexpr int any_window_of_gzip = 16 + MAX_WBITS;
  constexpr std::size_t piece = std::size_t{1} << 20U;
  constexpr std::size_t longest_input = std::numeric_limits<uInt>::max();
  z_stream stream = {};
  if (inflateInit2(&stream, any_window_of_gzip) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> ends(&stream, inflateEnd);
  std::string unpacked;
  while (true) {
    throw_if_interrupted();
    const std::size_t before = unpacked.size();
    unpacked.resize(before + piece);
    const auto given = std::min(packed.size(), longest_input);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));  // zlib only reads it
    stream.avail_in = static_cast<uInt>(given);
    stream.next_out = reinterpret_cast<Bytef*>(unpacked.data() + before);
    stream.avail_out = piece;
    const int status = inflate(&stream, Z_NO_FLUSH);
    packed.remove_prefix(given - stream.avail_in);
    unpacked.resize(before + piece - stream.avail_out);
    // Z_BUF_ERROR: the input ends before the member does.
    if (status != Z_OK && status != Z_STREAM_END) throw InputError("is not a complete gzip file; compress it again");
    if (unpacked.size() > most_bytes) throw InputError("decompresses to more than 4 GiB; record fewer steps");
    if (status != Z_STREAM_END) continue;
    if (packed.empty()) return unpacked;
    inflateReset(&stream);  // another member begins
  }
}

}  // namespace isobar::results

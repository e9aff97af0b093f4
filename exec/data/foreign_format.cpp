#include "exec/data/foreign_format.hpp"

#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace isobar::exec {

namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view bytes;
  const char* format;
};

constexpr Magic magics[] = {
    {"PAR1"sv, "a Parquet file"},
    {"PK\x03\x04"sv, "a zip archive, such as an .npz or a .pt"},
    {"\x1F\x8B\x08"sv, "compressed by gzip"},
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd"},
    {"\xFD"
     "7zXZ\x00"sv,
     "compressed by xz"},
    {"BZh"sv, "compressed by bzip2"},
    {"\x04\x22\x4D\x18"sv, "compressed by lz4"},
    {"ARROW1\x00\x00"sv, "an Arrow file"},
    {"\xFF\xFF\xFF\xFF"sv, "a stream of Arrow"},
    {"\x89HDF\r\n\x1A\n"sv, "an HDF5 file"},
    {"SQLite format 3\x00"sv, "an SQLite database"},
    {"MMIDIDX\x00\x00"sv, "the index of a Megatron-LM data set, whose tokens are in the .bin file"},
};

/// The first int32 of other files of llm.c than those of tokens. Source: karpathy/llm.c train_gpt2.{py,cu},
/// train_llama3.py, dev/data/data_common.py.
struct LlmCMagic {
  std::uint32_t number;
  const char* format;
};

constexpr LlmCMagic llm_c_magics[] = {
    {20240326, "a model"},       {20240327, "a reference state"}, {20240328, "a tokenizer"},
    {20240522, "an evaluation"}, {20240527, "a state"},           {20240803, "a model"},
};

std::uint32_t first_number(std::string_view bytes)
{
  std::uint32_t number = 0;
  for (std::size_t i = std::min(bytes.size(), sizeof number); i-- > 0;) {
    number = number << 8U | static_cast<unsigned char>(bytes[i]);
  }
  return number;
}

/// Whether all is UTF-8 of printable characters and white space.
bool is_text(std::string_view bytes, bool may_end_in_a_character)
{
  constexpr std::string_view white_space = "\t\n\v\f\r";
  constexpr std::size_t longest_character = 4;
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    if (length == 0) return may_end_in_a_character && bytes.size() < longest_character;
    if (is_control(bytes[0]) && white_space.find(bytes[0]) == std::string_view::npos) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

}  // namespace

std::string foreign_format(std::string_view start)
{
  for (const auto& [bytes, format] : magics) {
    if (start.starts_with(bytes)) return format;
  }
  for (const auto& [number, format] : llm_c_magics) {
    if (first_number(start) == number) return fmt::format("{} of llm.c (magic {})", format, number);
  }
  // A safetensors file begins with the length of its header, which is JSON.
  constexpr std::size_t length_bytes = 8;
  if (start.size() > length_bytes && start.substr(length_bytes).starts_with("{\"") &&
      start.substr(4, 4) == "\x00\x00\x00\x00"sv) {
    return "a safetensors file";
  }
  return !start.empty() && is_text(start, start.size() >= foreign_format_bytes) ? "text" : "";
}

}  // namespace isobar::exec

#include "exec/data/token_file.hpp"

#include "core/base/git_lfs.hpp"
#include "core/errors.hpp"
#include "core/names.hpp"
#include "exec/data/foreign_format.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace isobar::exec {

namespace {

/// The number in little-endian bytes.
std::uint64_t number_in(std::string_view bytes)
{
  std::uint64_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) number = number << 8U | static_cast<unsigned char>(bytes[i]);
  return number;
}

/// Bytes per token.
std::uint64_t width_of(TokenType type)
{
  switch (type) {
    case TokenType::Uint16:
      return 2;
    case TokenType::Uint32:
    case TokenType::Int32:
      return 4;
    case TokenType::Int64:
      return 8;
  }
  throw std::logic_error("a type without a width");
}

constexpr NameTable<TokenType, 4> types{{{TokenType::Uint16, "uint16"},
                                         {TokenType::Uint32, "uint32"},
                                         {TokenType::Int32, "int32"},
                                         {TokenType::Int64, "int64"}}};
constexpr NameTable<TokenType, 4> npy_types{
    {{TokenType::Uint16, "<u2"}, {TokenType::Uint32, "<u4"}, {TokenType::Int32, "<i4"}, {TokenType::Int64, "<i8"}}};
constexpr std::string_view npy_magic = "\x93NUMPY";
constexpr std::uint64_t two_byte_magic = 20240520, four_byte_magic = 20240801;  // llm.c's

/// The type of numbers that would be small if they had more than 16 bits; none if the first bytes show no such ones.
std::optional<TokenType> wider_type_of(std::string_view start, std::uint64_t bytes)
{
  constexpr std::size_t fewest_bytes = 16;
  if (start.size() < fewest_bytes || bytes % width_of(TokenType::Uint32) != 0) return std::nullopt;
  bool has_first = false;   // 16 bits of each 64
  bool has_second = false;  // which 64-bit numbers would not have
  for (std::size_t i = 0; i + 4 <= start.size(); i += 4) {
    if (number_in(start.substr(i + 2, 2)) != 0) return std::nullopt;
    (i % 8 == 0 ? has_first : has_second) |= number_in(start.substr(i, 2)) != 0;
  }
  if (!has_first && !has_second) return std::nullopt;
  return has_second || bytes % width_of(TokenType::Int64) != 0 ? TokenType::Uint32 : TokenType::Int64;
}

/// The header of a NumPy file, a Python dictionary literal.
class NpyHeader {
 public:
  /// @throws InputError naming `name`, the file, unless it has exactly the three members, in any order.
  NpyHeader(std::string_view text, const std::string& name) : rest_(text)
  {
    bool good = take("{");
    while (good && !take("}")) {
      const auto key = take_enclosed('\'', '\'');
      good = take(":");
      if (key == "descr") {
        type_ = take_enclosed('\'', '\'');
        good = good && !type_.empty();
      } else if (key == "fortran_order") {
        is_row_major_ = take("False");
        good = good && (is_row_major_ || take("True"));
      } else if (key == "shape") {
        shape_ = take_enclosed('(', ')');
      } else {
        good = false;
      }
      if (good && !take(",")) good = rest_.starts_with('}');
    }
    take("");
    if (!good || !rest_.empty() || type_.empty()) throw InputError(name, "its NumPy header is damaged");
  }

  /// For example "<u2": little-endian, unsigned, two bytes.
  std::string_view type() const { return type_; }
  bool is_row_major() const { return is_row_major_; }
  /// The text in the parentheses.
  std::string_view shape() const { return shape_; }
  /// The length of a one-dimensional array, written "(12,)"; none for any other shape.
  std::optional<std::uint64_t> length() const
  {
    std::uint64_t length = 0;
    const auto* end = shape_.data() + shape_.size();
    const auto [after, fault] = std::from_chars(shape_.data(), end, length);
    return fault == std::errc() && std::string_view(after, end) == "," ? std::optional(length) : std::nullopt;
  }

 private:
  /// Skips blanks, then takes `word` if it comes next.
  bool take(std::string_view word)
  {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  /// Takes the text between two delimiters; "" when the first does not come next.
  std::string_view take_enclosed(char open, char close)
  {
    if (!take({&open, 1})) return {};
    const auto text = rest_.substr(0, rest_.find(close));
    rest_.remove_prefix(std::min(rest_.size(), text.size() + 1));
    return text;
  }

  std::string_view rest_;
  std::string_view type_, shape_;
  bool is_row_major_ = false;
};

}  // namespace

std::vector<std::string> token_type_names()
{
  return names_in(types);
}

std::optional<TokenType> token_type_from_name(std::string_view name)
{
  return value_in(types, name);
}

TokenFile::TokenFile(const std::filesystem::path& file, std::uint64_t vocabulary, std::optional<TokenType> type)
    : name_(shown_path(file)),
      vocabulary_(vocabulary),
      descriptor_(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))
{
  if (descriptor_ < 0) throw InputError(name_, errno == ENOENT ? "no such file" : std::strerror(errno));
  try {
    open_format(type);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

TokenFile::~TokenFile()
{
  close(descriptor_);
}

void TokenFile::open_format(std::optional<TokenType> type)
{
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) throw EnvironmentError(fmt::format("{}: {}", name_, std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) throw InputError(name_, "is not a regular file; tokens are read at any offset");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  const std::string start = read_bytes(0, std::min<std::uint64_t>(bytes, foreign_format_bytes));
  refuse_lfs_pointer(start, name_);
  const auto promised = read_header(start, bytes);
  if (promised && type && *type != type_) {
    throw InputError(name_, fmt::format("has {} by its header, not {}; leave --data-type out", name_in(types, type_),
                                        name_in(types, *type)));
  }
  if (!promised && !type) require_uint16(start, bytes);
  if (type) type_ = *type;
  const std::uint64_t width = width_of(type_);
  const std::uint64_t room = bytes - begin_;
  if (room % width != 0) {
    throw InputError(name_, fmt::format("has {} bytes of tokens, not a multiple of {}; is it truncated?", room, width));
  }
  size_ = room / width;
  if (promised && *promised != size_) {
    throw InputError(name_,
                     fmt::format("its header says {} tokens, but it has {}; is it truncated?", *promised, size_));
  }
  if (size_ == 0) throw InputError(name_, "has no tokens");
}

void TokenFile::require_uint16(const std::string& start, std::uint64_t bytes) const
{
  if (const std::string format = foreign_format(start); !format.empty()) {
    throw InputError(name_, fmt::format("is {}, not numbers of tokens; make a .bin or .npy file of it, or give "
                                        "--data-type if these bytes are numbers",
                                        format));
  }
  if (const auto wider = wider_type_of(start, bytes)) {
    throw InputError(name_,
                     fmt::format("looks like {0}, since every second uint16 is 0; give --data-type {0}, or --data-type "
                                 "uint16 if that is right",
                                 name_in(types, *wider)));
  }
  constexpr std::uint64_t most = 65'536;
  if (vocabulary_ > most) {
    throw InputError(name_, fmt::format("has no header, and uint16 has fewer numbers than the vocabulary of {}; give "
                                        "--data-type, such as uint32",
                                        vocabulary_));
  }
}

std::optional<std::uint64_t> TokenFile::read_header(const std::string& start, std::uint64_t bytes)
{
  if (start.starts_with(npy_magic)) return read_npy_header(start, bytes);
  const std::uint64_t magic = start.size() < 4 ? 0 : number_in(start.substr(0, 4));
  if (magic == two_byte_magic || magic == four_byte_magic) return read_llm_c_header(start, bytes);
  return std::nullopt;
}

std::uint64_t TokenFile::read_llm_c_header(const std::string& start, std::uint64_t bytes)
{
  constexpr std::uint64_t header = 1024;  // 256 int32
  if (bytes < header) throw InputError(name_, fmt::format("ends after {} bytes, within llm.c's header", bytes));
  const bool has_two_bytes = number_in(start.substr(0, 4)) == two_byte_magic;
  const std::uint64_t version = number_in(start.substr(4, 4));
  const std::uint64_t expected = has_two_bytes ? 1 : 7;
  if (version != expected) {
    throw InputError(name_, fmt::format("has llm.c version {}; only version {} can be read", version, expected));
  }
  type_ = has_two_bytes ? TokenType::Uint16 : TokenType::Uint32;
  begin_ = header;
  return number_in(start.substr(8, 4));
}

std::uint64_t TokenFile::read_npy_header(const std::string& start, std::uint64_t bytes)
{
  const unsigned version = start.size() < 7 ? 0 : static_cast<unsigned char>(start[6]);
  const std::uint64_t length_bytes = version == 1 ? 2 : 4;  // width of the field with the header's length
  if (version < 1 || version > 3 || start.size() < 8 + length_bytes) {
    throw InputError(name_, "its NumPy header is damaged");
  }
  const std::uint64_t length = number_in(start.substr(8, length_bytes));
  begin_ = 8 + length_bytes + length;
  constexpr std::uint64_t longest_header = 10'000;  // NumPy's own limit
  if (length > longest_header || begin_ > bytes) throw InputError(name_, "its NumPy header is damaged");
  const std::string text = read_bytes(8 + length_bytes, length);
  const NpyHeader header(text, name_);
  const auto type = value_in(npy_types, header.type());
  if (!type) {
    throw InputError(name_, fmt::format("holds {}; tokens must be <u2, <u4, <i4 or <i8", in_quotes(header.type())));
  }
  if (!header.length() || !header.is_row_major()) {
    throw InputError(name_,
                     fmt::format("holds an array of shape ({}){}; tokens must be a one-dimensional array in C order",
                                 shown(header.shape()), header.is_row_major() ? "" : " in Fortran order"));
  }
  type_ = *type;
  return *header.length();
}

std::string TokenFile::read_bytes(std::uint64_t begin, std::uint64_t length) const
{
  std::string bytes(length, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw EnvironmentError(fmt::format("{}: cannot read: {}", name_, std::strerror(errno)));
    if (got == 0) throw EnvironmentError(fmt::format("{}: became shorter while it was in use", name_));
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::vector<std::int64_t> TokenFile::read(std::uint64_t begin, std::uint64_t length) const
{
  ensure(begin <= size_ && length <= size_ - begin, "tokens are read within the file");
  const std::uint64_t width = width_of(type_);
  const std::string bytes = read_bytes(begin_ + begin * width, length * width);
  std::vector<std::int64_t> tokens(length);
  for (std::uint64_t i = 0; i < length; ++i) {
    const std::uint64_t word = number_in(std::string_view(bytes).substr(i * width, width));
    tokens[i] = type_ == TokenType::Int32 ? static_cast<std::int32_t>(word) : static_cast<std::int64_t>(word);
    if (tokens[i] < 0 || static_cast<std::uint64_t>(tokens[i]) >= vocabulary_) {
      throw InputError(
          name_, fmt::format("token {} is {}; the vocabulary has 0 to {}", begin + i, tokens[i], vocabulary_ - 1));
    }
  }
  return tokens;
}

}  // namespace isobar::exec

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::exec {

/// The numbers of a file of tokens, little-endian.
enum class TokenType { Uint16, Uint32, Int32, Int64 };

/// "uint16", as --data-type takes it.
std::vector<std::string> token_type_names();
std::optional<TokenType> token_type_from_name(std::string_view name);

/// A file of tokens, read one window at a time and never kept in memory. The first bytes determine the format:
/// - llm.c's .bin: a header of 256 int32 (magic, version, number of tokens), then uint16 (magic 20240520, version 1) or
///   uint32 (magic 20240801, version 7);
/// - NumPy's .npy, versions 1 to 3: one dimension of uint16, uint32, int32 or int64;
/// - nanoGPT's .bin: no header, numbers from the first byte.
/// All are little-endian. Sources: karpathy/nanoGPT data/openwebtext/prepare.py; karpathy/llm.c
/// dev/data/data_common.py; numpy/lib/format.py.
class TokenFile {
 public:
  /// `vocabulary`: size of the vocabulary; every token must be below it. `type`: of the numbers of a file without a
  /// header; none: uint16, unless the file is evidently another one.
  /// @throws InputError naming the file when it cannot be read, its length or `type` contradicts its header, or,
  /// without `type`, a file without header is text or of a known format, every second of its uint16 is 0, or the
  /// vocabulary has more tokens than uint16.
  TokenFile(const std::filesystem::path& file, std::uint64_t vocabulary, std::optional<TokenType> type = {});
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  ~TokenFile();

  /// Number of tokens, at least 1.
  std::uint64_t size() const { return size_; }

  /// Tokens begin … begin + length − 1, all below size(). May be called by several threads at once.
  /// @throws InputError naming position and value of a token outside the vocabulary; EnvironmentError when the disk
  /// fails or the file became shorter.
  std::vector<std::int64_t> read(std::uint64_t begin, std::uint64_t length) const;

 private:
  void open_format(std::optional<TokenType> type);
  /// Reads a header if there is one. Returns its number of tokens. `start`: the file's first bytes; `bytes`: its size.
  std::optional<std::uint64_t> read_header(const std::string& start, std::uint64_t bytes);
  std::uint64_t read_npy_header(const std::string& start, std::uint64_t bytes);
  std::uint64_t read_llm_c_header(const std::string& start, std::uint64_t bytes);
  /// Refuses a file without a header that is evidently not of uint16.
  void require_uint16(const std::string& start, std::uint64_t bytes) const;
  std::string read_bytes(std::uint64_t begin, std::uint64_t length) const;

  std::string name_;  // as shown in messages
  std::uint64_t vocabulary_;
  int descriptor_ = -1;
  TokenType type_ = TokenType::Uint16;
  std::uint64_t begin_ = 0;  // offset of the tokens, in bytes
  std::uint64_t size_ = 0;
};

}  // namespace isobar::exec

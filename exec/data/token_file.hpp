#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::exec {

/// A file of tokens, read one window at a time and never kept in memory. The first bytes determine the format:
/// - nanoGPT's .bin: uint16 from the first byte;
/// - llm.c's .bin: a header of 256 int32 (magic, version, number of tokens), then uint16 (magic 20240520, version 1) or
///   uint32 (magic 20240801, version 7);
/// - NumPy's .npy, versions 1 to 3: one dimension of uint16, uint32, int32 or int64.
/// All are little-endian. Sources: karpathy/nanoGPT data/openwebtext/prepare.py; karpathy/llm.c
/// dev/data/data_common.py; numpy/lib/format.py.
class TokenFile {
 public:
  enum class Kind { Uint16, Uint32, Int32, Int64 };

  /// `vocabulary`: size of the vocabulary; every token must be below it.
  /// @throws InputError naming the file when it cannot be read, has another format, or its length contradicts its
  /// header.
  TokenFile(const std::filesystem::path& file, std::uint64_t vocabulary);
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
  void read_header();
  /// The number of tokens by the header. `start`: the file's first bytes; `bytes`: its size.
  std::uint64_t read_npy_header(const std::string& start, std::uint64_t bytes);
  std::string read_bytes(std::uint64_t begin, std::uint64_t length) const;

  std::string name_;  // as shown in messages
  std::uint64_t vocabulary_;
  int descriptor_ = -1;
  Kind kind_ = Kind::Uint16;
  std::uint64_t begin_ = 0;  // offset of the tokens, in bytes
  std::uint64_t size_ = 0;
};

}  // namespace isobar::exec

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::exec {

/// A file of tokens, read a window at a time; nothing of it stays in memory. Told apart by their first bytes:
/// - nanoGPT's .bin: uint16 from the first byte on;
/// - llm.c's .bin: a header of 256 int32 (magic, version, number of tokens), then uint16 (magic 20240520, version 1) or
///   uint32 (magic 20240801, version 7);
/// - NumPy's .npy, versions 1 to 3: one dimension of uint16, uint32, int32 or int64.
/// All little endian. Sources: karpathy/nanoGPT data/openwebtext/prepare.py; karpathy/llm.c dev/data/data_common.py;
/// numpy/lib/format.py.
class TokenFile {
 public:
  enum class Kind { Uint16, Uint32, Int32, Int64 };

  /// `vocabulary`: how many tokens there are; a token is below it.
  /// @throws InputError naming the file: it cannot be read, is no such file, or has another length than it says.
  TokenFile(const std::filesystem::path& file, std::uint64_t vocabulary);
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  ~TokenFile();

  /// How many tokens it has, at least 1.
  std::uint64_t size() const { return size_; }

  /// Tokens begin … begin + length − 1, which are there. By any number of threads at once.
  /// @throws InputError naming position and value of a token that is not in the vocabulary; EnvironmentError when the
  /// disk fails or the file has become shorter.
  std::vector<std::int64_t> read(std::uint64_t begin, std::uint64_t length) const;

 private:
  void read_header();
  /// The number of tokens that it promises. `start`: the file's first bytes.
  std::uint64_t read_npy_header(const std::string& start, std::uint64_t bytes);
  std::string read_bytes(std::uint64_t begin, std::uint64_t length) const;

  std::string name_;  // as messages show it
  std::uint64_t vocabulary_;
  int descriptor_ = -1;
  Kind kind_ = Kind::Uint16;
  std::uint64_t begin_ = 0;  // of the tokens, in bytes
  std::uint64_t size_ = 0;
};

}  // namespace isobar::exec

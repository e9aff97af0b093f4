#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace isobar {

/// The whole file. @throws InputError when it cannot be read ("FILE: no such file"), and for a pipe or device of more
/// than 1 GiB; Interrupted.
std::string read_file(const std::filesystem::path& file);

/// Whether a file is on the disk when it gets its name; what is replaced within seconds need not be.
enum class Flush { ToDisk, Never };

/// A file under a temporary name beside its target: it replaces the target when it is kept and vanishes otherwise, so
/// that a fault never costs what was there before. A symbolic link stays one: its target is replaced, or made. A device
/// or pipe (such as /dev/stdout) is written to as it is. @throws EnvironmentError when the target is read-only, or the
/// disk refuses.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path target);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  /// Where to write, for code that opens the file itself.
  const std::string& name() const { return name_; }
  void write(std::string_view content);
  void keep(Flush flush = Flush::ToDisk);

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path target_;
  std::string name_;  // the target's own where that is no regular file
  int descriptor_ = -1;
  bool replaces_ = true;
  bool kept_ = false;
};

/// Writes to a temporary name beside `file` and renames it, so that a fault never costs what was there before. A
/// symbolic link stays one: its target is replaced. A device or pipe (such as /dev/stdout) is written to as it is.
/// @throws EnvironmentError when the disk refuses.
void write_file_atomically(const std::filesystem::path& file, std::string_view content, Flush flush = Flush::ToDisk);

/// 64-bit FNV-1a, 16 hexadecimal digits: recognises the same content again; no protection against forgery.
std::string fingerprint(std::string_view content);

/// The same of what comes in pieces.
class ContentHash {
 public:
  void add(std::string_view piece);
  std::string text() const;

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace isobar

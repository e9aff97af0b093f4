#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace isobar {

/// Reads a whole file. @throws InputError when it cannot be read ("FILE: no such file"), is a pointer of git-lfs, or is
/// a pipe or device with more than 1 GiB; Interrupted.
std::string read_file(const std::filesystem::path& file);

/// Whether a file is flushed to disk before it gets its name. A file that is replaced within seconds need not be.
enum class Flush { ToDisk, Never };

/// Writes all of `content` to a descriptor. A request to stop ends a write that waits, as for the reader of a pipe.
/// @returns false, with errno, when a write fails. @throws Interrupted.
bool write_all(int descriptor, std::string_view content);

/// A file that replaces its target by `keep`, or is gone, so that an error never destroys the previous file. Where the
/// file system can make files without a name (O_TMPFILE), it has a temporary one next to its target only within `keep`,
/// so that a kill leaves nothing; elsewhere, from its beginning.
///
/// A symbolic link stays one: its target is replaced, or created. A device or pipe (such as /dev/stdout) is written
/// directly. @throws EnvironmentError when the target is read-only or a write fails; Interrupted.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path target);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  /// The name to write to, for code that opens the file itself.
  const std::string& name() const { return name_; }
  void write(std::string_view content);
  void keep(Flush flush = Flush::ToDisk);

 private:
  void open_temporary();
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path target_;
  std::string name_;  // the target's own name if that is not a regular file
  int descriptor_ = -1;
  bool replaces_ = true;
  bool is_nameless_ = false;
  bool kept_ = false;
};

/// Replaces `file` by `content` through a TemporaryFile, so that an error never destroys the previous file.
/// @throws EnvironmentError as TemporaryFile does.
void write_file_atomically(const std::filesystem::path& file, std::string_view content, Flush flush = Flush::ToDisk);

/// 64-bit FNV-1a hash as 16 hexadecimal digits: recognises equal content, but does not protect against forgery.
std::string fingerprint(std::string_view content);

/// `fingerprint` of content that arrives in pieces.
class ContentHash {
 public:
  void add(std::string_view piece);
  std::string text() const;

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace isobar

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace isobar::exec {

/// A path as shown in messages.
std::string shown_path(const std::filesystem::path& path);

/// A regular file, open for reading at any offset, from any thread.
class OpenFile {
 public:
  /// @throws InputError for a missing file, a directory, a device, a pipe, or a pointer of git-lfs; EnvironmentError
  /// when the system cannot open it.
  explicit OpenFile(const std::filesystem::path& file);
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  /// The file's name in messages.
  const std::string& where() const { return where_; }
  /// Size in bytes when it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `into` from `offset`. @throws EnvironmentError when reading fails or the file became shorter; Interrupted.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string where_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace isobar::exec

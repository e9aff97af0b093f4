#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace isobar::exec {

/// A path as messages show it.
std::string shown_path(const std::filesystem::path& path);

/// A regular file that is open for reading, from any place and any thread.
class OpenFile {
 public:
  /// @throws InputError when there is none, for a directory, a device and a pipe; EnvironmentError when the disk
  /// refuses.
  explicit OpenFile(const std::filesystem::path& file);
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  /// What messages call it.
  const std::string& where() const { return where_; }
  /// Bytes when it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `into`. @throws EnvironmentError when the disk refuses or the file has become shorter; Interrupted.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string where_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace isobar::exec

#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace isobar::exec {

/// The folder of scratch files: `given`, or that for temporary files if it is "".
std::filesystem::path scratch_folder(const std::filesystem::path& given);

/// A file that holds data for the time of a process. It has no name, so the system frees it however the process ends.
/// Where the file system cannot make such files (O_TMPFILE), it has one for a moment.
///
/// Reads and writes go to the disk without the system's cache of files where the file system can do that (O_DIRECT).
/// Thread-safe for ranges that do not overlap.
class ScratchFile {
 public:
  /// Offsets, sizes and addresses of reads and writes are multiples of this number of bytes.
  static constexpr std::size_t alignment = 4096;

  /// Makes a file of `size` bytes in `folder` and reserves its space.
  /// @throws EnvironmentError naming the folder when it cannot be written or has no space for the file; Interrupted.
  ScratchFile(const std::filesystem::path& folder, std::uint64_t size);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  std::uint64_t size() const { return size_; }
  /// Whether reads and writes bypass the system's cache of files.
  bool is_direct() const { return is_direct_; }
  /// The size that the file could have now: its own, and the free space of its file system.
  Bytes capacity() const;

  /// @throws EnvironmentError naming the folder when the disk fails; Interrupted.
  void write(std::uint64_t offset, std::span<const std::byte> from);
  void read(std::uint64_t offset, std::span<std::byte> into) const;
  /// Waits until the disk has what was written, and drops it from the system's cache. @throws EnvironmentError.
  void flush();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string where_;  // the folder in messages
  std::uint64_t size_;
  int descriptor_ = -1;
  bool is_direct_ = false;
};

}  // namespace isobar::exec

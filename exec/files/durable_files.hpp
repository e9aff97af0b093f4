#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace isobar::exec {

/// Flushes a folder's entries to disk; only then is a new or renamed file durable. Does nothing on file systems that
/// cannot. @throws EnvironmentError when the flush fails.
void synchronise_folder(const std::filesystem::path& folder);

/// The folder of `file`; "." for a bare name.
std::filesystem::path folder_of_file(const std::filesystem::path& file);

/// Exclusive lock of a folder against other runs, for the lifetime of the object. Processes forked meanwhile hold the
/// lock too, until they end.
///
/// The lock is on the file ".isobar-lock" in the folder, which stays there: NFS passes locks of files to its server,
/// but those of folders hold on one machine only.
class FolderLock {
 public:
  /// Waits up to 5 s, since processes of a killed run end soon. Calls `warn` with one line, and locks nothing, if the
  /// file system has no locks. @throws InputError when another run still holds the lock, EnvironmentError when the file
  /// cannot be opened.
  FolderLock(const std::filesystem::path& folder, const std::function<void(const std::string&)>& warn);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int descriptor_;
};

}  // namespace isobar::exec

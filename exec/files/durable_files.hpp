#pragma once

#include <filesystem>

namespace isobar::exec {

/// Returns when what `folder` names is on the disk: a renamed or new file is safe only then. Where the file system
/// knows no such thing, it has done its best. @throws EnvironmentError when the disk refuses.
void synchronise_folder(const std::filesystem::path& folder);

/// The folder that `file` lies in; "." where its name says none.
std::filesystem::path folder_of_file(const std::filesystem::path& file);

/// Keeps other runs away from a folder while it lives; processes that are forked meanwhile hold it too, until they end.
/// Where the file system knows no locks (flock), nobody is kept away.
class FolderLock {
 public:
  /// Waits up to 5 s, for what a killed run leaves is gone soon. @throws InputError when somebody else holds the folder
  /// still, EnvironmentError when it cannot be opened.
  explicit FolderLock(const std::filesystem::path& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int descriptor_;
};

}  // namespace isobar::exec

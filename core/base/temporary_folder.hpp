#pragma once

#include <filesystem>
#include <string>

namespace isobar {

/// A new folder where TMPDIR says, removed with its contents.
class TemporaryFolder {
 public:
  /// @throws EnvironmentError when it cannot be made.
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace isobar

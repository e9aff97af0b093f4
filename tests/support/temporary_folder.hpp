#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace isobar::testing_support {

/// A new, empty folder that is deleted with the object. Its name does not contain the process id: ids are reused, and a
/// test could find the files of an earlier one.
class TemporaryFolder {
 public:
  TemporaryFolder()
  {
    std::string folder = (std::filesystem::temp_directory_path() / "isobar-test.XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = folder;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }
  /// Writes a file and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& content) const
  {
    std::ofstream(path_ / name) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace isobar::testing_support

#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace isobar::testing_support {

/// A folder of a test's own, new and empty, that goes with it. Not named after the process: numbers of processes come
/// again, and what an earlier test left would be found.
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
  /// The path of the file that it writes.
  std::filesystem::path write(const std::string& name, const std::string& content) const
  {
    std::ofstream(path_ / name) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace isobar::testing_support

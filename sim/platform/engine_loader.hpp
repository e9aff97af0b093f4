#pragma once

#include <string>
#include <vector>

namespace isobar::sim {

/// A file in memory that holds a text, under its own path, for the lifetime of the object.
class TextInMemory {
 public:
  /// @throws EnvironmentError without memory for it.
  explicit TextInMemory(const std::string& text);
  TextInMemory(const TextInMemory&) = delete;
  TextInMemory& operator=(const TextInMemory&) = delete;
  ~TextInMemory();

  /// Valid in this process and in children that it forks.
  std::string path() const;

 private:
  int descriptor_;
};

/// What SimGrid loads.
struct EngineSource {
  std::string file;    ///< holds the platform's text
  std::string folder;  ///< where SimGrid looks for profile files after the working folder; "" for nowhere
  std::vector<std::string> fat_pipe_clusters = {};  ///< PlatformScan::fat_pipe_clusters
};

/// Starts this process's SimGrid engine with `network_settings` and loads a platform into it. The engine lives as long
/// as the process. Its log is off, except for the message before an abort; signal handlers stay as they were.
/// @throws what SimGrid throws for a faulty platform. For some faults SimGrid aborts the process instead.
void load_into_engine(const EngineSource& source);

}  // namespace isobar::sim

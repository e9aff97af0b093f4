#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace isobar {

/// Shows the progress of long work on stderr, only if that is a terminal: "compare: 3 of 8, about 12 s left".
class ProgressLine {
 public:
  /// `total`: of what `done` counts, if it is called.
  explicit ProgressLine(std::string what, std::size_t total = 0);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// Clears the line.
  ~ProgressLine();

  /// Shows `count` of the total, once the first second has passed.
  void done(std::size_t count);
  /// Shows what the work is at, "fit: window, layers 4096", once the first second has passed.
  void show(const std::string& text);
  /// Clears the line, so that other text can take its place. Thread-safe.
  void clear();

 private:
  double passed_s() const;

  std::string what_;
  std::size_t total_;
  double started_s_;
  bool on_terminal_;
  std::atomic<bool> shown_ = false;
};

}  // namespace isobar

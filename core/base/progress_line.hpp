#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace isobar {

/// Shows on stderr, on a terminal alone, how far long work has come: "compare: 3 of 8, about 12 s left".
class ProgressLine {
 public:
  ProgressLine(std::string what, std::size_t total);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// Clears the line.
  ~ProgressLine();

  /// Shows `count` of the total, once the first second has passed.
  void done(std::size_t count);
  /// Clears the line, so that another text can take its place. Any thread may call it.
  void clear();

 private:
  std::string what_;
  std::size_t total_;
  double started_s_;
  bool on_terminal_;
  std::atomic<bool> shown_ = false;
};

}  // namespace isobar

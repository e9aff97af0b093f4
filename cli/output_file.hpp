#pragma once

#include "core/base/files.hpp"

#include <optional>
#include <string>

namespace isobar::cli {

/// The file that a command writes when its work is done. It is opened before the work begins, so that no work is lost
/// to a file that cannot be written. The previous content stays until the command writes. "" is no file, "-" is
/// standard output.
class OutputFile {
 public:
  explicit OutputFile(const std::string& name);
  void write(const std::string& content);
  /// Whether the content goes to standard output; the command then prints nothing else.
  bool is_standard_output() const { return is_standard_output_; }

 private:
  std::optional<TemporaryFile> file_;
  bool is_standard_output_;
};

/// Prints to stdout. @throws EnvironmentError for a closed pipe or a full disk; Interrupted while a reader is awaited.
void print(const std::string& text);

}  // namespace isobar::cli

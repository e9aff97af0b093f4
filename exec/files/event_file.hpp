#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace isobar::exec {

/// Name and value of a step's scalar, as TensorBoard shows it.
using Scalar = std::pair<std::string_view, double>;

/// A file of scalars for TensorBoard: TFRecords, each a `tensorflow.Event`. Needs no TensorFlow library.
/// Sources: tensorflow/core/util/event.proto, tensorflow/core/lib/io/record_writer.cc.
class EventFile {
 public:
  /// Creates a file in `folder`, and the folder if missing. Its name sorts after all event files there, since
  /// TensorBoard reads them in that order. It records that the run starts at `first_step`, which makes TensorBoard drop
  /// that step and later ones of earlier files.
  /// @throws EnvironmentError when the file cannot be created.
  EventFile(const std::filesystem::path& folder, std::uint64_t first_step);

  /// Appends a step's scalars and flushes them. Values are stored as float32.
  void add(std::uint64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace isobar::exec

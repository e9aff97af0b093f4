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

/// One scalar of a step, as TensorBoard shows it.
using Scalar = std::pair<std::string_view, double>;

/// A file of scalars for TensorBoard, in a folder with those of earlier runs: TFRecords, each a `tensorflow.Event`.
/// Written without a library of TensorFlow's: tensorflow/core/util/event.proto,
/// tensorflow/core/lib/io/record_writer.cc.
class EventFile {
 public:
  /// A new file in `folder`, made where it is missing, that sorts after all others there: TensorBoard reads them in
  /// that order. It says that the run starts, maybe again, at `first_step`; TensorBoard then forgets what earlier files
  /// have of this step and later ones.
  /// @throws EnvironmentError when the disk refuses.
  EventFile(const std::filesystem::path& folder, std::uint64_t first_step);

  /// What a step came to; on the disk when it returns. Values are kept as float32.
  void add(std::uint64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace isobar::exec

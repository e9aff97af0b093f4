#pragma once

#include "exec/files/event_file.hpp"
#include "exec/files/step_report.hpp"

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace isobar::exec {

/// Where the steps of a run are told; "" is nowhere.
struct StepLogOptions {
  bool table = true;             ///< a line on standard output
  std::string json_lines;        ///< a file with a line of JSON for each step
  std::string tensorboard;       ///< a folder of TensorBoard's event files
  std::string prometheus;        ///< a text file of the last step, for Prometheus' textfile collector
  bool append = false;           ///< goes on with the logs of a run that ended; else begins them anew
  std::uint64_t first_step = 0;  ///< that will be told; what logs have of it and later ones is dropped
  double samples = 1;            ///< of a step
};

/// Tells of each step, on the rank that has the loss.
class StepLog {
 public:
  /// Opens all of them, so that a run that could not tell does not begin. The others' are left alone: a run has one.
  /// @throws EnvironmentError when one cannot be written; InputError when the file to go on with is no log of ours.
  explicit StepLog(StepLogOptions options);

  /// @throws EnvironmentError when the disk refuses.
  void operator()(const StepReport& step);

 private:
  /// With the first step, so that a run that never came to one costs nothing that was there before.
  void begin_json_lines();
  void print(const StepReport& step, double rate);

  StepLogOptions options_;
  bool has_printed_ = false;
  bool has_logged_ = false;
  std::ofstream json_lines_;
  std::optional<EventFile> events_;
};

/// The lines of a log whose steps come before `first_step`; a last line that was cut off when its run ended is none.
/// @throws InputError naming `file` and the line that is none of a log.
std::string lines_before(const std::string& log, const std::string& file, std::uint64_t first_step);

/// Prometheus' text format (version 0.0.4): the last step and what it came to.
std::string prometheus_text(const StepReport& step, double samples_per_s);

}  // namespace isobar::exec

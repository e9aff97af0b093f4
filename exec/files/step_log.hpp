#pragma once

#include "exec/files/event_file.hpp"
#include "exec/files/step_report.hpp"

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace isobar::exec {

/// Where the steps of a run are logged; "" means nowhere.
struct StepLogOptions {
  bool table = true;             ///< a line per step on standard output
  std::string job;               ///< of a mix, begins each line of the table, whose head the command prints
  std::string json_lines;        ///< a file with one JSON line per step
  std::string tensorboard;       ///< a folder of TensorBoard event files
  std::string prometheus;        ///< a text file with the last step, for Prometheus' textfile collector
  bool append = false;           ///< continue the logs of an earlier run; otherwise start new ones
  std::uint64_t first_step = 0;  ///< first step to log; existing entries of it and later steps are dropped
  double samples = 1;            ///< samples per step
  bool updates_late = false;     ///< whether updates are a step late, which JSON lines say
};

/// Logs each step, on the rank that has the loss.
class StepLog {
 public:
  /// Opens all logs, so that a run does not begin if a log cannot be written.
  /// @throws EnvironmentError when one cannot be written; InputError when the file to continue is not a log of ours.
  explicit StepLog(StepLogOptions options);

  /// Logs one step. @throws EnvironmentError when a write fails.
  void operator()(const StepReport& step);

 private:
  /// Called with the first step, so that a run without any step leaves an existing log as it was.
  void begin_json_lines();
  void print(const StepReport& step, double rate);

  StepLogOptions options_;
  bool has_printed_ = false;
  bool has_logged_ = false;
  std::ofstream json_lines_;
  std::optional<EventFile> events_;
};

/// The lines of a log for steps before `first_step`, without an incomplete last line.
/// @throws InputError naming `file` and the first line that is not a step of a log.
std::string lines_before(const std::string& log, const std::string& file, std::uint64_t first_step);

/// The last step in Prometheus' text format (version 0.0.4).
std::string prometheus_text(const StepReport& step, double samples_per_s);

}  // namespace isobar::exec

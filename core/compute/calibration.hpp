#pragma once

#include "core/model/framework.hpp"
#include "core/model/workload.hpp"

#include <string>
#include <vector>

namespace isobar::compute {

/// Factors on the bandwidths that links attain by Isobar's constants, or by the machine file where it has measured
/// ones.
struct LinkFactors {
  double inside = 1;   ///< of nodes
  double outside = 1;  ///< of NICs

  bool operator==(const LinkFactors&) const = default;
};

/// Training software and links of one type of machine, calibrated by measured steps: a file of schema
/// isobar-calibration/1 (docs/formats/calibration.md).
struct Calibration {
  std::string file;    ///< for messages
  Framework system;    ///< with the name of the training system that it changes
  std::string device;  ///< the type whose steps were measured
  LinkFactors links;
  std::vector<std::string> rows;  ///< the measured steps, for people
};

/// Reads a calibration. @throws InputError with every fault of the file, "file:line: key: what is wrong; what to
/// write".
Calibration read_calibration(const std::string& file);
/// The file of a calibration, with the shipped value beside each number. Numbers have six significant digits.
std::string calibration_to_yaml(const Calibration& calibration);

/// The flags that a calibration changes, as settings of a workload: "framework.FLAG" and the value, which reads as the
/// same number.
WorkloadSettings settings_of(const Calibration& calibration);
/// Adds a calibration to the settings of a workload file: `compute`, `framework` where the file names none, and
/// settings_of. Settings that exist already stay. Returns the flags of the file's own that the calibration replaces.
/// @throws InputError "--system: …" if the settings or the file name another training system, or compute: rate.
std::vector<std::string> add_calibration(const Calibration& calibration, const std::string& workload_file,
                                         WorkloadSettings& settings);

}  // namespace isobar::compute

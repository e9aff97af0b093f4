#pragma once

#include "core/compute/calibration.hpp"
#include "results/fidelity/measured_row.hpp"
#include "results/fidelity/prediction.hpp"

#include <optional>
#include <string>

namespace isobar::cli {

struct PredictionOptions {
  bool unfolded = false;  ///< play every rank; otherwise equal ones once, where that gives the same step
  /// Where to write the row's platform.xml, workload.yaml and plan.json, which `isobar verify` and `isobar simulate`
  /// take; "": nowhere. It is made.
  std::string folder = {};
  std::optional<compute::Calibration> system = {};  ///< in place of the constants of the row's software and links
};

/// Predicts a measured run: as platform, workload and plan, which are simulated like any others. What the row leaves
/// open is chosen so that the step is least, among what fits into the devices.
///
/// A row that cannot be expressed is unsupported, with its reason; so is one of another training system or type of
/// device than the calibration is of. Can be called once per process.
results::RowPrediction predict(const results::MeasuredRow& row, const PredictionOptions& options);

}  // namespace isobar::cli

#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// A constant that `fit_calibration` may change. Its position is 0 as shipped; what a position means is the caller's.
struct CalibrationConstant {
  std::string name;
  double width = 0.1;  ///< the prior's standard deviation of the position
  double lowest = 0;   ///< of the position
  double highest = 0;
  /// The constant only counts if no row depends on this other one.
  std::optional<std::size_t> instead_of = {};
};
/// A position of each constant.
using FitPosition = std::vector<double>;

struct StepToFit {
  double log_step;   ///< logarithm of the time
  double deviation;  ///< standard deviation of that: of the measurement and of the model together
};

/// A prediction that the fit asks for.
struct FitTrial {
  FitPosition position;
  std::size_t row;
};
/// Returns the logarithm of the predicted step of each trial.
using PredictFitTrials = std::function<std::vector<double>(const std::vector<FitTrial>&)>;

struct CalibrationFit {
  FitPosition position;
  std::vector<double> deviations;  ///< of each position, given the rows and the prior
  std::vector<bool> is_seen;       ///< a row depends on the constant; else it is as shipped
  std::vector<bool> is_at_bound;   ///< `lowest` or `highest`, away from the shipped one
  // Logarithms of the predicted steps.
  std::vector<double> shipped;
  std::vector<double> calibrated;
  /// Each row, with constants that are fitted on the others; empty for one row.
  std::vector<double> left_out;
};

/// Errors that exceed this number of standard deviations count by their size, not by its square, so that one bad row
/// does not move all constants (Huber 1964; the usual value).
inline constexpr double large_error = 1.345;

/// Fits constants to measured steps, with a Gaussian prior around the shipped ones: minimizes
/// Σ huber((predicted − measured) / deviation) + Σ (position / width)², all steps as logarithms. So a constant moves
/// away from the shipped one only as far as rows ask for it, and few rows change little.
///
/// Gauss-Newton steps with forward differences: at most `most_iterations` times (constants + 1) predictions of each
/// row, and one more of each. What leaves a row out takes the derivatives of the whole fit. Deterministic.
CalibrationFit fit_calibration(const std::vector<CalibrationConstant>& constants, const std::vector<StepToFit>& steps,
                               const PredictFitTrials& predict);

}  // namespace isobar::results

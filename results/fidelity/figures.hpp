#pragma once

#include "results/fidelity/accuracy.hpp"
#include "results/fidelity/measured_row.hpp"
#include "results/fidelity/prediction.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// A measured row beside its prediction.
struct PredictedRow {
  MeasuredRow measured;
  RowPrediction prediction;  ///< empty for an excluded row
  std::string failure;       ///< why the prediction did not end, such as "died of signal 9 (Killed)"; "" if it did
  /// The prediction of a constant rate (`add_floors`).
  std::optional<Seconds> floor = {};

  /// "predicted", "unsupported", "failed" (the prediction did not end) or "excluded".
  std::string_view status() const;
  /// Why there is no prediction; "" if there is one.
  const std::string& reason() const;
  /// Of the predicted step and memory, predicted / measured - 1; none where one of both is unknown.
  std::optional<double> error() const;
  std::optional<double> memory_error() const;
  /// Whether the time was measured within the interval of the prediction; none where one of both is unknown.
  std::optional<bool> is_inside() const;
};

/// Gives each row the prediction of a constant rate of its devices: its time at peak, times one factor for the devices'
/// types and the framework. The factor is the geometric mean of measured time over time at peak of all calibration rows
/// with the same types and framework; without such a row there is no prediction.
void add_floors(std::vector<PredictedRow>& rows);

/// How one model predicts the times of some rows.
struct TimeFigures {
  std::optional<ErrorFigures> errors;  ///< none without a predicted time
  RankFigures ranks;
};

/// The figures of some rows of a set.
struct RowFigures {
  std::size_t rows = 0;
  std::size_t predicted = 0;  ///< the others are unsupported, or their prediction did not end
  TimeFigures times;
  std::optional<ErrorFigures> memory;  ///< none where no memory was measured and predicted
  TimeFigures floor;                   ///< of a constant rate
  TimeFigures reference;               ///< of the simulator whose predictions are in `reference_s`
  std::optional<ErrorFigures> reference_memory;
  std::size_t intervals = 0;                     ///< rows that have a time and an interval
  std::size_t inside = 0;                        ///< of them, measured within it
  std::optional<ErrorFigures> beside_reference;  ///< of our times, on the rows that have a `reference_s`

  /// The fraction of rows that are predicted; none without rows.
  std::optional<double> coverage() const;
  /// The fraction of rows that are measured within their intervals; none without intervals.
  std::optional<double> inside_fraction() const;
};

/// How the rows of a group are ranked.
struct GroupFigures {
  std::string group;
  std::size_t rows = 0;  ///< measured and predicted
  RankFigures ranks;
  std::string chosen;  ///< row with the least prediction
  std::string best;    ///< row with the least measured time
};

/// The figures of one set.
struct SetFigures {
  std::string set;
  /// The roles that `figures` counts: development and gate, which nothing is fitted on; calibration in a set without
  /// them; derived alone in the table of derived sets.
  std::vector<RowRole> roles;
  RowFigures figures;
  std::vector<std::pair<RowRole, RowFigures>>
      by_role;                       ///< calibration, development and gate apart, where they have rows
  std::vector<GroupFigures> groups;  ///< of rows of all these roles, at least two in a group
  std::size_t failed_runs = 0;       ///< runs that died, whether or not they are predicted
  std::size_t false_fits = 0;        ///< of them, predicted to fit
  std::size_t false_refusals = 0;    ///< runs that ended but are predicted not to fit
  std::size_t excluded = 0;
};

/// The figures of all sets, in the order of their first rows.
struct FidelityFigures {
  std::vector<SetFigures> sets;
  std::vector<SetFigures> derived;  ///< of rows that are not measurements
};

/// The figures of rows that have their floors.
FidelityFigures fidelity_figures(const std::vector<PredictedRow>& rows);

}  // namespace isobar::results

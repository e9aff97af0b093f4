#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::results {

/// A measured number and its prediction, in the same unit.
struct PredictedNumber {
  double predicted = 0;
  double measured = 0;

  /// predicted / measured - 1.
  double error() const { return predicted / measured - 1; }
};

/// How far predictions are from measurements. Errors are relative; all but `signed_mean` count without their sign.
struct ErrorFigures {
  std::size_t rows = 0;
  double mean = 0;
  double median = 0;
  double p95 = 0;  ///< element ceil(0.95 n) of the sorted errors, counted from 1
  double max = 0;
  double signed_mean = 0;
};

/// The figures of at least one number. O(n log n).
ErrorFigures error_figures(const std::vector<PredictedNumber>& numbers);

/// How well predictions rank the rows of groups.
struct RankFigures {
  std::size_t groups = 0;               ///< with at least 5 rows, not all measured alike
  std::optional<double> spearman;       ///< mean over those groups; none without one
  std::size_t pairs = 0;                ///< within groups of any size, whose measurements differ by more than 2 %
  std::optional<double> ordered_pairs;  ///< fraction of them that predictions order as measurements do
  std::optional<double> mean_regret;    ///< over groups of at least 2 rows; none without one
  std::optional<double> max_regret;
};

/// The rank figures of groups of rows. The regret of a group: the measured time of the row with the least prediction,
/// over the least measured time, - 1. O(rows²) in a group.
RankFigures rank_figures(const std::vector<std::vector<PredictedNumber>>& groups);

/// Spearman's coefficient: the correlation of ranks, equal numbers having the mean of theirs. At least two numbers;
/// none when all predictions or all measurements are equal.
std::optional<double> spearman(const std::vector<PredictedNumber>& numbers);

}  // namespace isobar::results

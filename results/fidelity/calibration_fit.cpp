#include "results/fidelity/calibration_fit.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <cmath>

namespace isobar::results {

namespace {

constexpr std::size_t most_iterations = 6;
constexpr std::size_t most_halvings = 4;
/// A step of Gauss-Newton that moves no constant by more, in widths of its prior, is the last one.
constexpr double small_step = 0.01;
/// A constant whose width changes no row by more than this part of its step is not seen.
constexpr double least_effect = 1e-4;
/// Derivatives are over this part of a width: small beside what is fitted, large beside the rounding of simulations.
constexpr double difference = 0.5;

using Matrix = std::vector<std::vector<double>>;

/// Residuals and derivatives of rows at a position: predicted − measured ≈ residual + derivatives · (other − position).
struct Linearized {
  FitPosition position;
  std::vector<double> residuals;
  Matrix derivatives;  // by row, then by constant

  double residual_at(std::size_t row, const FitPosition& other) const
  {
    double sum = residuals[row];
    for (std::size_t k = 0; k < other.size(); ++k) sum += derivatives[row][k] * (other[k] - position[k]);
    return sum;
  }
};

class Fit {
 public:
  Fit(const std::vector<CalibrationConstant>& constants, const std::vector<StepToFit>& steps,
      const PredictFitTrials& predict)
      : constants_(constants), steps_(steps), predict_(predict), is_seen_(constants.size(), true)
  {
  }

  CalibrationFit run()
  {
    CalibrationFit fit;
    Linearized at;
    at.position.assign(constants_.size(), 0);
    fit.shipped = predicted(at.position);
    fit.calibrated = fit.shipped;
    for (std::size_t iteration = 0; iteration < most_iterations; ++iteration) {
      linearize(at, fit.calibrated);
      if (iteration == 0) leave_unseen(at);
      const FitPosition next = best_of_line(at, fit.calibrated);
      const double moved = distance(at.position, next);
      at.position = next;
      if (moved < small_step) break;
    }
    for (std::size_t row = 0; row < steps_.size(); ++row) {
      at.residuals[row] = fit.calibrated[row] - steps_[row].log_step;
    }
    fit.position = at.position;
    fit.is_seen = is_seen_;
    fit.deviations = deviations(at);
    for (std::size_t k = 0; k < constants_.size(); ++k) {
      const double own = at.position[k];
      fit.is_at_bound.push_back(own != 0 && (own == constants_[k].lowest || own == constants_[k].highest));
    }
    if (steps_.size() > 1) fit.left_out = without_each(at);
    return fit;
  }

 private:
  std::vector<double> predicted(const FitPosition& position) const
  {
    std::vector<FitTrial> trials;
    for (std::size_t row = 0; row < steps_.size(); ++row) trials.push_back({position, row});
    return predict_(trials);
  }

  void linearize(Linearized& at, const std::vector<double>& own) const
  {
    std::vector<FitTrial> trials;
    std::vector<double> moves(constants_.size(), 0);
    for (std::size_t k = 0; k < constants_.size(); ++k) {
      if (!is_seen_[k]) continue;
      moves[k] = difference * constants_[k].width;
      if (at.position[k] + moves[k] > constants_[k].highest) moves[k] = -moves[k];
      FitPosition moved = at.position;
      moved[k] += moves[k];
      for (std::size_t row = 0; row < steps_.size(); ++row) trials.push_back({moved, row});
    }
    const std::vector<double> others = predict_(trials);
    at.derivatives.assign(steps_.size(), std::vector<double>(constants_.size(), 0));
    at.residuals.clear();
    for (std::size_t row = 0; row < steps_.size(); ++row) at.residuals.push_back(own[row] - steps_[row].log_step);
    std::size_t next = 0;
    for (std::size_t k = 0; k < constants_.size(); ++k) {
      for (std::size_t row = 0; is_seen_[k] && row < steps_.size(); ++row) {
        at.derivatives[row][k] = (others[next++] - own[row]) / moves[k];
      }
    }
  }

  void leave_unseen(Linearized& at)
  {
    for (std::size_t k = 0; k < constants_.size(); ++k) {
      is_seen_[k] = std::ranges::any_of(
          at.derivatives, [&](const auto& of_row) { return std::abs(of_row[k]) * constants_[k].width > least_effect; });
    }
    for (std::size_t k = 0; k < constants_.size(); ++k) {
      const auto& other = constants_[k].instead_of;
      if (other && is_seen_[*other]) is_seen_[k] = false;
    }
    for (auto& of_row : at.derivatives) {
      for (std::size_t k = 0; k < constants_.size(); ++k) {
        if (!is_seen_[k]) of_row[k] = 0;
      }
    }
  }

  /// The best position by the derivatives, or one nearer to the old one if predictions there are worse than before.
  /// `own` are the predictions at the old position, and then at the new one.
  FitPosition best_of_line(const Linearized& at, std::vector<double>& own) const
  {
    const double before = objective(at.position, own);
    FitPosition next = solved(at, steps_.size());
    for (std::size_t halving = 0; halving < most_halvings; ++halving) {
      auto others = predicted(next);
      if (objective(next, others) <= before) {
        own = std::move(others);
        return next;
      }
      for (std::size_t k = 0; k < next.size(); ++k) next[k] = 0.5 * (next[k] + at.position[k]);
    }
    return at.position;
  }

  double objective(const FitPosition& position, const std::vector<double>& predictions) const
  {
    double sum = 0;
    for (std::size_t row = 0; row < steps_.size(); ++row) {
      const double error = std::abs(predictions[row] - steps_[row].log_step) / steps_[row].deviation;
      sum += error <= large_error ? error * error : large_error * (2 * error - large_error);
    }
    for (std::size_t k = 0; k < position.size(); ++k) sum += std::pow(position[k] / constants_[k].width, 2);
    return sum;
  }

  double distance(const FitPosition& one, const FitPosition& other) const
  {
    double most = 0;
    for (std::size_t k = 0; k < one.size(); ++k)
      most = std::max(most, std::abs(one[k] - other[k]) / constants_[k].width);
    return most;
  }

  /// Weights of rows for errors that are large: their squares then grow as their sizes.
  double weight(std::size_t row, double residual) const
  {
    const double error = std::abs(residual) / steps_[row].deviation;
    return (error <= large_error ? 1 : large_error / error) / std::pow(steps_[row].deviation, 2);
  }

  /// The curvature of the objective over the constants, halved: derivatives of rows, and the prior.
  Matrix curvature(const Linearized& at, const std::vector<double>& weights) const
  {
    const std::size_t count = constants_.size();
    Matrix sum(count, std::vector<double>(count, 0));
    for (std::size_t k = 0; k < count; ++k) sum[k][k] = 1 / std::pow(constants_[k].width, 2);
    for (std::size_t row = 0; row < steps_.size(); ++row) {
      const auto& own = at.derivatives[row];
      for (std::size_t k = 0; k < count; ++k) {
        for (std::size_t l = 0; l < count; ++l) sum[k][l] += weights[row] * own[k] * own[l];
      }
    }
    return sum;
  }

  std::vector<double> weights_at(const Linearized& at, const FitPosition& position, std::size_t left_out) const
  {
    std::vector<double> weights;
    for (std::size_t row = 0; row < steps_.size(); ++row) {
      weights.push_back(row == left_out ? 0 : weight(row, at.residual_at(row, position)));
    }
    return weights;
  }

  /// The position with the least objective within the bounds, by the derivatives, without one row (none: their number).
  /// Weights and position follow each other; constants move one after the other, which converges as the curvature is
  /// positive definite and bounds are of single constants.
  FitPosition solved(const Linearized& at, std::size_t left_out) const
  {
    FitPosition position = at.position;
    for (int round = 0; round < 200; ++round) {
      const FitPosition before = position;
      const auto weights = weights_at(at, position, left_out);
      const Matrix curved = curvature(at, weights);
      // The slope of the objective at the derivatives' own position, halved.
      std::vector<double> slope;
      for (std::size_t k = 0; k < constants_.size(); ++k) {
        double sum = at.position[k] / std::pow(constants_[k].width, 2);
        for (std::size_t row = 0; row < steps_.size(); ++row) {
          sum += weights[row] * at.derivatives[row][k] * at.residuals[row];
        }
        slope.push_back(sum);
      }
      for (int sweep = 0; sweep < 10'000; ++sweep) {
        const FitPosition last = position;
        for (std::size_t k = 0; k < constants_.size(); ++k) {
          double sum = slope[k];
          for (std::size_t l = 0; l < constants_.size(); ++l) sum += curved[k][l] * (position[l] - at.position[l]);
          position[k] = std::clamp(position[k] - sum / curved[k][k], constants_[k].lowest, constants_[k].highest);
        }
        if (distance(last, position) < 1e-9) break;
      }
      if (distance(before, position) < 1e-6) break;
    }
    return position;
  }

  /// Square roots of the diagonal of the inverse curvature.
  std::vector<double> deviations(const Linearized& at) const
  {
    const std::size_t count = constants_.size();
    const Matrix curved = curvature(at, weights_at(at, at.position, steps_.size()));
    std::vector<double> result;
    for (std::size_t k = 0; k < count; ++k) {
      std::vector<double> column(count, 0);
      for (int sweep = 0; sweep < 10'000; ++sweep) {
        double moved = 0;
        for (std::size_t i = 0; i < count; ++i) {
          double sum = i == k ? 1 : 0;
          for (std::size_t l = 0; l < count; ++l) sum -= l == i ? 0 : curved[i][l] * column[l];
          const double next = sum / curved[i][i];
          moved = std::max(moved, std::abs(next - column[i]) / std::pow(constants_[i].width, 2));
          column[i] = next;
        }
        if (moved < 1e-12) break;
      }
      result.push_back(std::sqrt(std::max(column[k], 0.0)));
    }
    return result;
  }

  std::vector<double> without_each(const Linearized& at) const
  {
    std::vector<FitTrial> trials;
    for (std::size_t row = 0; row < steps_.size(); ++row) trials.push_back({solved(at, row), row});
    return predict_(trials);
  }

  const std::vector<CalibrationConstant>& constants_;
  const std::vector<StepToFit>& steps_;
  const PredictFitTrials& predict_;
  std::vector<bool> is_seen_;
};

}  // namespace

CalibrationFit fit_calibration(const std::vector<CalibrationConstant>& constants, const std::vector<StepToFit>& steps,
                               const PredictFitTrials& predict)
{
  ensure(!steps.empty(), "constants are fitted to measured steps");
  return Fit(constants, steps, predict).run();
}

}  // namespace isobar::results

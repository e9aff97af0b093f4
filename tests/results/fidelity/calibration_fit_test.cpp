#include "results/fidelity/calibration_fit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace isobar::results::calibration_fit_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr double deviation = 0.03;

/// A step of parts, each over the exponential of its constant's position, in seconds.
using Parts = std::vector<double>;

double log_step_of(const Parts& parts, const FitPosition& position)
{
  double sum = 0;
  for (std::size_t k = 0; k < parts.size(); ++k) sum += parts[k] * std::exp(-position[k]);
  return std::log(sum);
}

CalibrationConstant factor(double width = 0.1, double largest = 0.7)
{
  return {"f", width, -largest, largest};
}

/// The fit of constants to rows of such parts.
struct Fitted {
  CalibrationFit fit;
  std::size_t predictions = 0;
};
Fitted fitted(const std::vector<CalibrationConstant>& constants, const std::vector<Parts>& rows,
              const std::vector<double>& log_steps)
{
  std::vector<StepToFit> steps;
  for (const double step : log_steps) steps.push_back({step, deviation});
  Fitted result;
  result.fit = fit_calibration(constants, steps, [&](const std::vector<FitTrial>& trials) {
    std::vector<double> predictions;
    for (const auto& trial : trials) predictions.push_back(log_step_of(rows[trial.row], trial.position));
    result.predictions += trials.size();
    return predictions;
  });
  return result;
}

/// Rows with one constant, whose steps are longer than measured by these parts.
CalibrationFit fit_of_errors(const std::vector<double>& errors, const CalibrationConstant& constant = factor())
{
  std::vector<double> measured;
  for (const double error : errors) measured.push_back(-error);
  return fitted({constant}, std::vector<Parts>(errors.size(), {1}), measured).fit;
}

TEST(CalibrationFit, RecoversTheConstantsThatMadeTheRows)
{
  const std::vector<Parts> rows = {{8, 1, 1}, {6, 3, 1}, {5, 1, 4}, {9, 0, 1}, {2, 7, 1},
                                   {1, 1, 8}, {4, 4, 2}, {7, 2, 1}, {3, 6, 1}, {5, 0, 5}};
  const FitPosition truth = {-0.12, 0.2, 0.1};
  std::vector<double> measured;
  for (const auto& row : rows) measured.push_back(log_step_of(row, truth));
  const auto [fit, predictions] = fitted({factor(), factor(0.3), factor(0.15)}, rows, measured);
  for (std::size_t k = 0; k < truth.size(); ++k) {
    EXPECT_NEAR(fit.position[k], truth[k], 0.02) << k;
    EXPECT_LT(fit.deviations[k], 0.05) << k;
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    EXPECT_NEAR(fit.calibrated[row], measured[row], 0.01);
    EXPECT_NEAR(fit.left_out[row], measured[row], 0.03);
  }
  EXPECT_EQ(fit.shipped[0], std::log(10));
  EXPECT_LE(predictions, 10 * (1 + 6 * 4 + 1));
}

TEST(CalibrationFit, OfOneRowLiesBetweenItAndTheShippedConstant)
{
  const auto fit = fit_of_errors({0.1});
  const double weight = 1 / (deviation * deviation);
  EXPECT_NEAR(fit.position[0], 0.1 * weight / (weight + 100), 1e-6);
  EXPECT_NEAR(fit.deviations[0], 1 / std::sqrt(weight + 100), 1e-6);
  EXPECT_THAT(fit.left_out, IsEmpty());
}

TEST(CalibrationFit, FollowsManyRowsCloserThanOne)
{
  const auto one = fit_of_errors({0.1});
  const auto ten = fit_of_errors(std::vector<double>(10, 0.1));
  EXPECT_GT(ten.position[0], one.position[0]);
  EXPECT_NEAR(ten.position[0], 0.1, 0.001);
}

TEST(CalibrationFit, LetsOneBadRowPullByNoMoreThanALargeError)
{
  const auto fit = fit_of_errors({0, 0, 0, 0, 0.5});
  EXPECT_NEAR(fit.position[0], large_error / deviation / (4 / (deviation * deviation) + 100), 1e-6);
}

TEST(CalibrationFit, PredictsEachRowWithConstantsOfTheOthers)
{
  const auto fit = fit_of_errors({0.1, 0});
  const double weight = 1 / (deviation * deviation);
  EXPECT_NEAR(fit.left_out[0], 0, 1e-6) << "the other row is as shipped";
  EXPECT_NEAR(fit.left_out[1], -0.1 * weight / (weight + 100), 1e-6);
}

TEST(CalibrationFit, LeavesConstantsThatNoRowDependsOnAsShipped)
{
  const auto [fit, predictions] = fitted({factor(), factor()}, {{1, 0}, {2, 0}}, {-0.1, std::log(2) - 0.1});
  EXPECT_THAT(fit.is_seen, ElementsAre(true, false));
  EXPECT_EQ(fit.position[1], 0);
  EXPECT_NEAR(fit.deviations[1], 0.1, 1e-9) << "the prior's";
}

TEST(CalibrationFit, TakesAConstantInsteadOfAnotherOnlyWithoutThat)
{
  CalibrationConstant second = factor();
  second.instead_of = 0;
  EXPECT_THAT(fitted({factor(), second}, {{1, 1}}, {0.5}).fit.is_seen, ElementsAre(true, false));
  EXPECT_THAT(fitted({factor(), second}, {{0, 1}}, {0.5}).fit.is_seen, ElementsAre(false, true));
}

TEST(CalibrationFit, ReportsAConstantAtItsBound)
{
  const auto fit = fit_of_errors(std::vector<double>(10, 1.0), factor(0.1, 0.2));
  EXPECT_EQ(fit.position[0], 0.2);
  EXPECT_THAT(fit.is_at_bound, ElementsAre(true));
  EXPECT_THAT(fit_of_errors({0.1}).is_at_bound, ElementsAre(false));
  const auto none = fit_of_errors({0.1, 0.1}, {"time beside 0", 0.5, -10, 0});
  EXPECT_EQ(none.position[0], 0);
  EXPECT_THAT(none.is_at_bound, ElementsAre(false)) << "it is as shipped";
}

TEST(CalibrationFit, OfRowsThatArePredictedAsMeasuredIsAsShipped)
{
  const auto fit = fit_of_errors({0, 0, 0});
  EXPECT_THAT(fit.position, ElementsAre(0));
  EXPECT_THAT(fit.calibrated, SizeIs(3));
  EXPECT_THAT(fit.left_out, Each(0));
}

}  // namespace
}  // namespace isobar::results::calibration_fit_test

#include "results/fidelity/figures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::figures_test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Optional;

/// A row of set s with a predicted and a measured time.
PredictedRow row_of(const std::string& name, RowRole role, double predicted, double measured,
                    const std::string& group = "g")
{
  PredictedRow row;
  row.measured.set = "s";
  row.measured.name = name;
  row.measured.role = role;
  row.measured.group = group;
  row.measured.framework = "f";
  row.measured.measured = Seconds(measured);
  row.prediction.step = Seconds(predicted);
  row.prediction.device = "d";
  return row;
}

PredictedRow unsupported_row(const std::string& name, RowRole role)
{
  PredictedRow row = row_of(name, role, 1, 1);
  row.prediction.step.reset();
  row.prediction.unsupported = "cannot be expressed";
  return row;
}

SetFigures only_set(const std::vector<PredictedRow>& rows)
{
  const auto figures = fidelity_figures(rows);
  EXPECT_EQ(figures.sets.size(), 1U);
  EXPECT_TRUE(figures.derived.empty());
  return figures.sets.at(0);
}

TEST(FidelityFigures, CountTheRowsThatNothingIsFittedOn)
{
  const auto set = only_set({row_of("a", RowRole::Calibration, 2, 1), row_of("b", RowRole::Development, 1.1, 1),
                             row_of("c", RowRole::Gate, 1.3, 1)});
  EXPECT_THAT(set.roles, ElementsAre(RowRole::Development, RowRole::Gate));
  EXPECT_EQ(set.figures.rows, 2U);
  EXPECT_NEAR(set.figures.times.errors->mean, 0.2, 1e-12);
  ASSERT_EQ(set.by_role.size(), 3U);
  EXPECT_EQ(set.by_role[0].first, RowRole::Calibration);
  EXPECT_NEAR(set.by_role[0].second.times.errors->mean, 1, 1e-12);
  EXPECT_NEAR(set.by_role[1].second.times.errors->mean, 0.1, 1e-12);
}

TEST(FidelityFigures, CountTheRowsThatAreMeasuredWithinTheirIntervals)
{
  auto inside = row_of("a", RowRole::Development, 1.1, 1);
  inside.prediction.interval = StepInterval{Seconds(1), Seconds(1.2)};
  auto outside = row_of("b", RowRole::Development, 1.1, 1.3);
  outside.prediction.interval = inside.prediction.interval;
  const auto unknown = row_of("c", RowRole::Development, 1, 1);
  const auto set = only_set({inside, outside, unknown});
  EXPECT_EQ(inside.is_inside(), true);
  EXPECT_EQ(outside.is_inside(), false);
  EXPECT_EQ(unknown.is_inside(), std::nullopt);
  EXPECT_EQ(set.figures.intervals, 2U);
  EXPECT_EQ(set.figures.inside_fraction(), 0.5);
  EXPECT_EQ(only_set({unknown}).figures.inside_fraction(), std::nullopt);
}

TEST(FidelityFigures, CountCalibrationRowsInASetWithoutOthers)
{
  const auto set = only_set({row_of("a", RowRole::Calibration, 2, 1)});
  EXPECT_THAT(set.roles, ElementsAre(RowRole::Calibration));
  EXPECT_EQ(set.figures.rows, 1U);
}

TEST(FidelityFigures, UnsupportedRowsLowerTheCoverageAndLeaveErrorsAlone)
{
  const auto set = only_set({row_of("a", RowRole::Gate, 1.1, 1), unsupported_row("b", RowRole::Gate)});
  EXPECT_THAT(set.figures.coverage(), Optional(0.5));
  EXPECT_NEAR(set.figures.times.errors->mean, 0.1, 1e-12);
}

TEST(FidelityFigures, DerivedRowsAreInATableOfTheirOwn)
{
  const auto figures =
      fidelity_figures({row_of("a", RowRole::Derived, 1.5, 1), row_of("b", RowRole::Development, 1.1, 1)});
  ASSERT_EQ(figures.sets.size(), 1U);
  EXPECT_EQ(figures.sets[0].figures.rows, 1U);
  ASSERT_EQ(figures.derived.size(), 1U);
  EXPECT_NEAR(figures.derived[0].figures.times.errors->mean, 0.5, 1e-12);
}

TEST(FidelityFigures, ExcludedAndFailedRowsAreInNoErrorFigure)
{
  auto failed = row_of("f", RowRole::Failed, 9, 1);
  failed.measured.measured.reset();
  const auto set = only_set({row_of("a", RowRole::Development, 1.1, 1), row_of("b", RowRole::Excluded, 9, 1), failed});
  EXPECT_EQ(set.figures.rows, 1U);
  EXPECT_NEAR(set.figures.times.errors->max, 0.1, 1e-12);
  EXPECT_EQ(set.excluded, 1U);
  EXPECT_EQ(set.failed_runs, 1U);
}

TEST(FidelityFigures, FailedRunsThatArePredictedToFitAreFalseFits)
{
  auto refused = row_of("b", RowRole::Failed, 1, 1);
  refused.prediction.fits = false;
  auto falsely_refused = row_of("c", RowRole::Calibration, 1, 1);
  falsely_refused.prediction.fits = false;
  const auto set = only_set({row_of("a", RowRole::Failed, 1, 1), refused, unsupported_row("d", RowRole::Failed),
                             falsely_refused, row_of("e", RowRole::Development, 1, 1)});
  EXPECT_EQ(set.failed_runs, 3U);
  EXPECT_EQ(set.false_fits, 1U);
  EXPECT_EQ(set.false_refusals, 1U);
}

TEST(FidelityFigures, GroupsRankRowsOfAllMeasuredRoles)
{
  const auto set = only_set({row_of("a", RowRole::Calibration, 1, 12), row_of("b", RowRole::Development, 2, 10),
                             row_of("c", RowRole::Development, 3, 30), row_of("x", RowRole::Development, 1, 1, "")});
  ASSERT_EQ(set.groups.size(), 1U);
  EXPECT_EQ(set.groups[0].rows, 3U);
  EXPECT_EQ(set.groups[0].chosen, "a");
  EXPECT_EQ(set.groups[0].best, "b");
  EXPECT_THAT(set.groups[0].ranks.mean_regret, Optional(DoubleNear(0.2, 1e-12)));
  EXPECT_THAT(set.figures.times.ranks.mean_regret, Optional(DoubleNear(0, 1e-12))) << "without the calibration row";
}

TEST(FidelityFigures, CompareMemoryAndTheReferenceSimulator)
{
  auto a = row_of("a", RowRole::Development, 1.1, 1);
  a.measured.measured_memory = Bytes(100);
  a.prediction.memory = Bytes(98);
  a.measured.reference = Seconds(1.4);
  a.measured.reference_memory = Bytes(110);
  const auto set = only_set({a, row_of("b", RowRole::Development, 1.3, 1)});
  EXPECT_NEAR(set.figures.memory->mean, 0.02, 1e-12);
  EXPECT_EQ(set.figures.reference.errors->rows, 1U);
  EXPECT_NEAR(set.figures.reference.errors->mean, 0.4, 1e-12);
  EXPECT_NEAR(set.figures.reference_memory->mean, 0.1, 1e-12);
  EXPECT_NEAR(set.figures.beside_reference->mean, 0.1, 1e-12) << "ours, on the same row";
}

TEST(Floors, ScaleTheTimeAtPeakByTheMeanFactorOfTheCalibrationRowsOfADeviceAndFramework)
{
  auto a = row_of("a", RowRole::Calibration, 1, 2);
  a.prediction.at_peak = Seconds(1);
  auto b = row_of("b", RowRole::Calibration, 1, 8);
  b.prediction.at_peak = Seconds(1);
  auto c = row_of("c", RowRole::Development, 1, 100);
  c.prediction.at_peak = Seconds(10);
  auto other_device = c;
  other_device.prediction.device = "e";
  auto other_framework = c;
  other_framework.measured.framework = "h";
  std::vector<PredictedRow> rows = {a, b, c, other_device, other_framework};
  add_floors(rows);
  ASSERT_TRUE(rows[2].floor.has_value());
  EXPECT_NEAR(rows[2].floor->value, 40, 1e-9);
  EXPECT_EQ(rows[3].floor, std::nullopt);
  EXPECT_EQ(rows[4].floor, std::nullopt);
}

TEST(RowPrediction, SurvivesItsText)
{
  RowPrediction prediction;
  prediction.step = Seconds(1.0 / 3);
  prediction.memory = Bytes(123456789);
  double time = 0.1;
  for (const auto& part : row_parts) prediction.parts.*part.time = Seconds(time += 1.0 / 7);
  prediction.at_peak = Seconds(2.0 / 7);
  prediction.folded = true;
  prediction.fits = false;
  prediction.notes = {"machine: four nodes", "nothing else"};
  prediction.device = "H100";
  prediction.interval = StepInterval{Seconds(0.3), Seconds(0.4), {"any run"}};
  prediction.exposed = 1.0 / 7;
  prediction.spans_nodes = true;
  const auto read = prediction_from_json(prediction_to_json(prediction));
  EXPECT_EQ(read.step, prediction.step);
  EXPECT_EQ(read.memory, prediction.memory);
  for (const auto& part : row_parts) EXPECT_EQ(read.parts.*part.time, prediction.parts.*part.time) << part.key;
  EXPECT_EQ(read.at_peak, prediction.at_peak);
  EXPECT_TRUE(read.folded);
  EXPECT_FALSE(read.fits);
  EXPECT_EQ(read.notes, prediction.notes);
  EXPECT_EQ(read.device, "H100");
  ASSERT_TRUE(read.interval);
  EXPECT_EQ(read.interval->low, Seconds(0.3));
  EXPECT_EQ(read.interval->high, Seconds(0.4));
  EXPECT_THAT(read.interval->because, ElementsAre("any run"));
  EXPECT_EQ(read.exposed, prediction.exposed);
  EXPECT_TRUE(read.spans_nodes);

  RowPrediction none;
  none.unsupported = "no such schedule";
  EXPECT_EQ(prediction_from_json(prediction_to_json(none)).step, std::nullopt);
  EXPECT_EQ(prediction_from_json(prediction_to_json(none)).unsupported, "no such schedule");
}

}  // namespace
}  // namespace isobar::results::figures_test

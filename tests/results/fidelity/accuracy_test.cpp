#include "results/fidelity/accuracy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace isobar::results::accuracy_test {
namespace {

using testing::DoubleNear;
using testing::Optional;

TEST(ErrorFigures, CountErrorsWithoutTheirSignButForTheSignedMean)
{
  const ErrorFigures figures = error_figures({{110, 100}, {80, 100}, {100, 100}, {106, 100}});
  EXPECT_EQ(figures.rows, 4U);
  EXPECT_NEAR(figures.mean, 0.09, 1e-12);
  EXPECT_NEAR(figures.median, 0.08, 1e-12);
  EXPECT_NEAR(figures.p95, 0.2, 1e-12);
  EXPECT_NEAR(figures.max, 0.2, 1e-12);
  EXPECT_NEAR(figures.signed_mean, -0.01, 1e-12);
}

TEST(ErrorFigures, TakeTheNineteenthOfTwentyErrorsAsP95)
{
  std::vector<PredictedNumber> numbers;
  for (int i = 1; i <= 20; ++i) numbers.push_back({100.0 + i, 100});
  EXPECT_NEAR(error_figures(numbers).p95, 0.19, 1e-12);
}

TEST(Spearman, IsOneForTheSameOrderAndMinusOneForTheReverse)
{
  EXPECT_THAT(spearman({{1, 10}, {5, 20}, {6, 90}}), Optional(DoubleNear(1, 1e-12)));
  EXPECT_THAT(spearman({{3, 10}, {2, 20}, {1, 90}}), Optional(DoubleNear(-1, 1e-12)));
}

TEST(Spearman, GivesEqualNumbersTheMeanOfTheirRanks)
{
  // Ranks 1.5, 1.5, 3 and 1, 2, 3: 1.5 / sqrt(1.5 * 2).
  EXPECT_THAT(spearman({{1, 10}, {1, 20}, {6, 90}}), Optional(DoubleNear(0.8660254037844387, 1e-12)));
}

TEST(Spearman, IsNothingWhereAllPredictionsAreEqual)
{
  EXPECT_EQ(spearman({{1, 10}, {1, 20}}), std::nullopt);
}

TEST(RankFigures, RegretIsWhatThePredictedBestCostsOverTheMeasuredBest)
{
  const RankFigures figures = rank_figures({{{1, 11}, {2, 10}, {3, 30}}, {{1, 5}, {2, 6}}, {{1, 1}}});
  EXPECT_EQ(figures.groups, 0U) << "no group has 5 rows";
  EXPECT_EQ(figures.spearman, std::nullopt);
  EXPECT_THAT(figures.mean_regret, Optional(DoubleNear(0.05, 1e-12)));
  EXPECT_THAT(figures.max_regret, Optional(DoubleNear(0.1, 1e-12)));
}

TEST(RankFigures, PairsWithinTwoPerCentHaveNoOrder)
{
  const RankFigures figures = rank_figures({{{2, 100}, {1, 101}, {3, 110}, {4, 108}}});
  EXPECT_EQ(figures.pairs, 4U);  // 100 and 101 with 108 and 110
  EXPECT_THAT(figures.ordered_pairs, Optional(1.0));
}

TEST(RankFigures, AModelThatPredictsTheSameOfAllRowsRanksNone)
{
  const RankFigures figures = rank_figures({{{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}}});
  EXPECT_EQ(figures.groups, 1U);
  EXPECT_THAT(figures.spearman, Optional(0.0));
  EXPECT_THAT(figures.ordered_pairs, Optional(0.0));
}

}  // namespace
}  // namespace isobar::results::accuracy_test
